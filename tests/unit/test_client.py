"""One streamed request: the parser, the times, the endings.

Identity under test: every time in a record is the clock's reading when the bytes came. The clock is
scripted, one tick a read, so a stray read of it shows as a whole tick.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import labkit as lab
from labkit.measure.client import request_body, stream_request
from labkit.measure.stream import EventDecoder, RequestRecord, Stream

PLAN = lab.RequestPlan(label="A", prompt="hi", max_tokens=4, seed=1)


def chat(**delta: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}).encode() + b"\n\n"


ROLE = chat(role="assistant", content=None)
DETAILS = b'"__verbose":{"id_slot":1,"truncated":false}'
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}],' + DETAILS + b"}\n\n"
USAGE = b'data: {"choices":[],"usage":{"completion_tokens":2},"timings":{"prompt_n":9,"cache_n":0,"prompt_ms":5.0}}\n\n'
DONE = b"data: [DONE]\n\n"


def decode(*chunks: bytes) -> list[tuple[str, bytes]]:
    decoder = EventDecoder()
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return events + list(decoder.close())


# --- the parser ---------------------------------------------------------------------------------------


def test_pings_are_told_from_data() -> None:
    assert decode(b":\n\n:\n\n:\n\ndata: x\n\n") == [("ping", b"")] * 3 + [("data", b"x")]


def test_two_events_in_one_read_and_crlf_endings() -> None:
    assert decode(b"data: 1\r\n\r\ndata: 2\r\n\r\n") == [("data", b"1"), ("data", b"2")]


def test_a_last_event_without_its_newline_counts() -> None:
    assert decode(b"data: 1\n\ndata: [DONE]") == [("data", b"1"), ("data", b"[DONE]")]


def test_an_error_line_is_an_error() -> None:
    assert decode(b'error: {"code":500}\n\n') == [("error", b'{"code":500}')]


@given(st.lists(st.integers(0, 200), max_size=8))
def test_where_the_bytes_are_cut_does_not_matter(cuts: list[int]) -> None:
    stream = b":\n\n" + chat(content="größer €") + b"data: 2\r\n\r\n" + DONE
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    chunks = [stream[a:b] for a, b in pairwise(edges)]
    assert decode(*chunks) == decode(stream)


# --- the times ----------------------------------------------------------------------------------------


class ScriptedClock:
    """Reads 0, 1, 2, ...: one tick a read."""

    def __init__(self) -> None:
        self.reads = -1

    def __call__(self) -> float:
        self.reads += 1
        return float(self.reads)


class Chunks(httpx.AsyncByteStream):
    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            yield chunk


def send(
    *chunks: bytes, status: int = 200, plan: lab.RequestPlan = PLAN, **more: Any
) -> tuple[RequestRecord, list[Any]]:
    """Return the record and tokens of a request that is answered with these chunks."""
    tokens: list[Any] = []
    record = RequestRecord(arm="treatment", label=plan.label, seed=plan.seed, max_tokens=plan.max_tokens)
    stream = Stream(plan, record, ScriptedClock(), lambda r, t, text: tokens.append((r.tokens, t, text)), **more)

    async def run() -> None:
        transport = httpx.MockTransport(lambda request: httpx.Response(status, stream=Chunks(list(chunks))))
        async with httpx.AsyncClient(transport=transport, base_url="http://lab") as client:
            await stream_request(client, stream, model="m")

    asyncio.run(run())
    return record, tokens


def test_a_token_is_a_chunk_with_text_and_nothing_else() -> None:
    # reads of the clock: 0 headers, then one a chunk, then the end of the body, then the end
    record, tokens = send(ROLE, chat(content="a"), b":\n\n", chat(content="b"), FINISH, USAGE, DONE)
    assert tokens == [(1, 2.0, "a"), (2, 4.0, "b")]
    assert (record.headers_s, record.first_event_s, record.first_token_s, record.last_token_s) == (0.0, 1.0, 2.0, 4.0)
    assert record.end_s == 9.0
    assert record.pings == 1
    assert (record.outcome, record.finish_reason, record.id_slot) == ("completed", "length", 1)
    assert record.timings == {"prompt_n": 9, "cache_n": 0, "prompt_ms": 5.0}


def test_reasoning_and_answer_have_times_of_their_own() -> None:
    record, _ = send(ROLE, chat(reasoning_content="hm"), chat(content="a"), FINISH, USAGE, DONE)
    assert (record.first_event_s, record.first_token_s, record.first_answer_s) == (1.0, 2.0, 3.0)
    assert record.last_token_s == 3.0
    assert record.tokens == 2


def test_a_stream_without_a_token_has_no_time_for_one() -> None:
    record, tokens = send(ROLE, FINISH, USAGE, DONE)
    assert tokens == []
    assert record.first_token_s is None
    assert record.tokens == 0


def test_two_tokens_in_one_read_share_its_time() -> None:
    _, tokens = send(ROLE + chat(content="a") + chat(content="b"), FINISH, DONE)
    assert [t for _, t, _ in tokens] == [1.0, 1.0]


# --- the endings --------------------------------------------------------------------------------------

EXCEEDED = {"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}}
TOO_LONG = {"error": {"code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 4}}


def endings() -> Iterator[Any]:
    error = json.dumps(EXCEEDED).encode()
    yield pytest.param([json.dumps(TOO_LONG).encode()], 400, "does_not_fit", id="400 before the stream")
    yield pytest.param([error], 500, "server_error", id="500")
    yield pytest.param([chat(content="a"), b"data: " + error + b"\n\n"], 200, "server_error", id="data error")
    yield pytest.param([chat(content="a"), b"error: " + error + b"\n\n"], 200, "server_error", id="error line")
    yield pytest.param([chat(content="a")], 200, "disconnected", id="cut off")
    yield pytest.param([chat(content="a"), FINISH.replace(b"false", b"true"), DONE], 200, "slot_limit", id="slot full")
    yield pytest.param([chat(content="a"), FINISH, DONE], 200, "completed", id="fine")
    yield pytest.param([b"data: {broken\n\n"], 200, "server_error", id="not JSON")
    yield pytest.param([b"no"], 403, "refused", id="403")


@pytest.mark.parametrize(("chunks", "status", "outcome"), list(endings()))
def test_each_ending_has_an_outcome_of_its_own(chunks: list[bytes], status: int, outcome: str) -> None:
    record, _ = send(*chunks, status=status)
    assert record.outcome == outcome
    assert (record.error is None) == (outcome in ("completed", "slot_limit"))
    assert record.status == status


def test_tokens_before_an_error_are_kept() -> None:
    record, tokens = send(chat(content="a"), b"data: " + json.dumps(EXCEEDED).encode() + b"\n\n")
    assert len(tokens) == record.tokens == 1
    assert "Context size has been exceeded" in (record.error or "")


def test_an_error_body_is_kept_up_to_a_limit() -> None:
    record, _ = send(b"x" * 100_000, status=500)
    assert len(record.error or "") == 4000


def test_the_completion_endpoint_is_read_too() -> None:
    plan = PLAN.model_copy(update={"endpoint": "completion"})
    final = b'data: {"content":"","stop":true,"stop_type":"limit","id_slot":0,"truncated":true}\n\n'
    record, tokens = send(b'data: {"content":"a","stop":false,"id_slot":-1}\n\n', final, plan=plan)
    assert (record.outcome, record.id_slot, record.finish_reason, len(tokens)) == ("slot_limit", 0, "length", 1)


def test_texts_are_kept_only_on_request() -> None:
    assert send(chat(content="a"), FINISH, DONE)[0].text is None
    record, _ = send(chat(content="a"), chat(content="b"), FINISH, DONE, keep_text=True)
    assert (record.prompt, record.text) == ("hi", "ab")


def test_the_body_asks_for_a_stream_without_the_cache() -> None:
    body = request_body(PLAN, "m")
    assert (body["stream"], body["cache_prompt"], body["seed"], body["max_tokens"]) == (True, False, 1, 4)
    assert "id_slot" not in body
    pinned = PLAN.model_copy(update={"id_slot": 1, "endpoint": "completion"})
    assert request_body(pinned, "m")["id_slot"] == 1
    assert request_body(pinned, "m")["n_predict"] == 4
