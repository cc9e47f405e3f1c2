"""The moving picture: rows in as they come, frames out."""

from __future__ import annotations

from typing import Any

from labkit.analyze.live import KEPT_S, Live

SERVER = {
    "asked": {"cont_batching": True},
    "effective": {"slots": 2, "pool_cells": 512, "slot_cells": 512, "kv_unified": True},
}


def begun(**facts: Any) -> Live:
    live = Live()
    live.take("arm", {"arm": "treatment", "server": SERVER} | facts)
    return live


def sent(live: Live, label: str, at_s: float, seed: int) -> None:
    live.take("sent", {"label": label, "seed": seed, "max_tokens": 8, "at_s": at_s, "warm_up": False})


def token(live: Live, label: str, at_s: float, text: str = "x") -> None:
    live.take("tokens", {"label": label, "at_s": at_s, "warm_up": False})
    live.take("text", {"label": label, "text": text, "warm_up": False})


def ended(live: Live, label: str, end_s: float, outcome: str = "completed", **more: Any) -> None:
    row = {"label": label, "outcome": outcome, "error": None, "end_s": end_s, "id_slot": None, "warm_up": False}
    live.take("requests", row | more)


def slot(number: int, seed: int | None, task: int = 1, decoded: int = 0) -> dict[str, Any]:
    busy = seed is not None
    return {"id": number, "busy": busy, "seed": seed, "id_task": task, "n_prefilled": 0, "n_decoded": decoded}


def polled(live: Live, at_s: float, *slots: dict[str, Any]) -> None:
    live.take("slots", {"sent_s": at_s - 0.01, "received_s": at_s, "slots": list(slots)})


def requests(frame: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["label"]: row for row in frame["requests"]}


def test_an_arm_brings_its_server_and_a_name_in_words() -> None:
    frame = begun().frame()
    assert (frame["slots"], frame["kv"]) == (2, {"unified": True, "pool": 512, "slot": 512})
    assert frame["title"] == "continuous batching on"
    assert begun(title="all at once").frame()["title"] == "all at once"


def test_a_request_waits_gets_a_slot_decodes_and_ends() -> None:
    live = begun(prompt_tokens={"A": 20})
    sent(live, "A", 1.0, seed=7)
    assert requests(live.frame())["A"]["state"] == "deferred"
    polled(live, 1.1, slot(0, 7), slot(1, None))
    frame = live.frame()
    assert requests(frame)["A"]["state"] == "held"
    assert frame["open"] == [[0, "A", "held", 1.1, None]]
    token(live, "A", 1.3)
    frame = live.frame()
    assert requests(frame)["A"]["cells"] == 21
    assert frame["open"] == [[0, "A", "decode", 1.3, None]]
    assert frame["spans"] == [[0, "A", "held", 1.1, 1.3]]
    ended(live, "A", 1.5)
    frame = live.frame()
    assert frame["spans"] == [[0, "A", "decode", 1.3, 1.5]]
    assert (requests(frame)["A"]["state"], requests(frame)["A"]["cells"]) == ("done", 0)


def test_tokens_that_come_before_the_first_poll_are_no_wait() -> None:
    live = begun()
    sent(live, "A", 1.0, seed=7)
    token(live, "A", 1.02)
    polled(live, 1.4, slot(0, 7, decoded=9))
    assert live.frame()["open"] == [[0, "A", "decode", 1.02, None]]


def test_a_poll_older_than_the_first_token_takes_nothing_back() -> None:
    live = begun()
    sent(live, "A", 1.0, seed=7)
    polled(live, 1.1, slot(0, 7))
    token(live, "A", 1.2)
    polled(live, 1.21, slot(0, 7))
    assert live.frame()["open"] == [[0, "A", "decode", 1.2, None]]


def test_somebody_elses_task_has_no_name() -> None:
    live = begun()
    polled(live, 1.0, slot(0, None), slot(1, 99))
    assert live.frame()["open"] == [[1, "", "held", 1.0, None]]
    polled(live, 1.1, slot(0, None), slot(1, None))
    frame = live.frame()
    assert (frame["open"], frame["spans"]) == ([], [[1, "", "held", 1.0, 1.1]])


def test_a_failure_says_why_and_holds_no_cells() -> None:
    live = begun(prompt_tokens={"A": 20})
    sent(live, "A", 1.0, seed=7)
    polled(live, 1.1, slot(0, 7))
    ended(live, "A", 1.2, "server_error", error="Context size has been exceeded.")
    row = requests(live.frame())["A"]
    assert (row["state"], row["outcome"], row["cells"]) == ("failed", "server_error", 0)
    assert row["error"] == "Context size has been exceeded."


def test_a_frame_has_only_what_is_new_and_a_new_page_gets_everything() -> None:
    live = begun()
    live.frame()
    sent(live, "A", 1.0, seed=7)
    token(live, "A", 1.1, "Once ")
    assert live.frame()["text"] == {"A": "Once "}
    token(live, "A", 1.2, "upon")
    frame = live.frame()
    assert (frame["text"], frame["marks"]) == ({"A": "upon"}, {"A": [1.2]})
    everything = live.everything()
    assert everything["all"]
    assert (everything["text"], everything["marks"]) == ({"A": "Once upon"}, {"A": [1.1, 1.2]})


def test_what_is_old_is_not_sent_to_a_new_page() -> None:
    live = begun()
    sent(live, "A", 1.0, seed=7)
    token(live, "A", 1.1)
    token(live, "A", 2.0 + KEPT_S)
    assert live.everything()["marks"] == {"A": [2.0 + KEPT_S]}


def test_the_next_arm_starts_an_empty_picture() -> None:
    live = begun()
    sent(live, "A", 1.0, seed=7)
    token(live, "A", 1.1)
    live.take("arm", {"arm": "control", "server": SERVER | {"asked": {"cont_batching": False}}})
    frame = live.frame()
    assert frame["all"]
    assert (frame["requests"], frame["marks"], frame["title"]) == ([], {}, "continuous batching off")


def test_warm_up_and_unknown_rows_are_left_out() -> None:
    live = begun()
    live.take("sent", {"label": "warm-up 1", "seed": 1, "max_tokens": 8, "at_s": 0.5, "warm_up": True})
    live.take("memory", {"rss_bytes": 1})
    token(live, "nobody", 1.0)
    ended(live, "nobody", 1.0)
    polled(live, 1.0)
    live.take("slots", {"sent_s": 1.0, "received_s": None, "slots": None})
    assert live.frame()["requests"] == []


def test_requests_are_in_the_order_of_their_names() -> None:
    live = begun()
    for number, label in enumerate(["Z27", "B", "A"]):
        sent(live, label, 1.0 + number, seed=number)
    assert list(requests(live.frame())) == ["A", "B", "Z27"]


def test_the_servers_own_count_of_the_deferred() -> None:
    live = begun()
    live.take("metrics", {"values": {"requests_deferred": 3.0}})
    assert live.frame()["deferred"] == 3
    live.take("metrics", {"values": None})
    assert live.frame()["deferred"] == 3
