"""What one arm of a late-arrival run shows: counts of A's tokens and of polls around each late request."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from labkit.analyze.rows import ArmRows, timing

# Tokens that A must decode while B owns a slot before "B was kept out" may be said.
MIN_CHANCE_TOKENS = 8
# A client that got A's last token so many steps late has fallen behind: its counts are estimates then.
LAG_STEPS = 5


@dataclass(frozen=True)
class LateView:
    """What the streams and /slots say of one late request.

    Args:
        label: its name.
        outcome: how it ended.
        sent_s: when it was sent; first_token_s: when its first token came (run's clock).
        tokens_before: A's tokens between B's sending and B's first token.
        tokens_after: A's tokens after B's first token, as far as the server's own times allow: a client
            that falls behind gets tokens long after A has ended.
        reads_after: in so many separate reads.
        surely_after: tokens that A had left, at the least, when B's first one came: by the server's own
            durations. None where it gives none.
        prefilled_beside: B's prefill began before A can have ended, by the server's own durations.
        window_s: from B's sending to A's last token.
        chance_tokens: tokens that A decoded, by its own counter in /slots, while B owned a slot without
            progress.
        polls_waiting: readable polls between B's sending and A's last token.
        polls_owned: of these, polls in which B owned a slot.
        elsewhere: /slots showed it on another slot than its own answer names.
        timed: the server gave the durations of A's decoding and of this one's prefill.
        polls_joined: polls in which both A and B had made fresh progress and were busy.
        polls_inside: polls sent and answered while the stream brought B's tokens.
        polls_inside_seen: of these, polls that show B on a slot; polls_inside_fresh: with progress.
    """

    label: str
    outcome: str
    sent_s: float | None
    first_token_s: float | None
    tokens_before: int = 0
    tokens_after: int = 0
    reads_after: int = 0
    surely_after: int | None = None
    prefilled_beside: bool = False
    window_s: float = 0.0
    chance_tokens: int = 0
    polls_waiting: int = 0
    polls_owned: int = 0
    elsewhere: bool = False
    timed: bool = False
    polls_joined: int = 0
    polls_inside: int = 0
    polls_inside_seen: int = 0
    polls_inside_fresh: int = 0


@dataclass(frozen=True)
class ArmView:
    """One arm, reduced to what a verdict needs.

    Args:
        name: the arm.
        late: its late requests; those that had a slot while A decoded come first.
        a_tokens: tokens that A got.
        eligible: how many late requests could own a slot beside A.
        chance_needed: tokens that A must decode while a late request waits on its slot, before that counts.
        slots_speak: /slots could be read and names the requests by their seeds.
        attached: the server isn't ours; behind its address there may be several.
        trouble: why the arm can't be judged and what to change, or None.
    """

    name: str
    late: tuple[LateView, ...] = ()
    a_tokens: int = 0
    eligible: int = 0
    chance_needed: int = MIN_CHANCE_TOKENS
    slots_speak: bool = False
    attached: bool = False
    trouble: tuple[str, str] | None = None


def _first_served(view: LateView) -> tuple[bool, float]:
    """Order late requests: first those that had a slot while A decoded, by their first token."""
    had_a_slot = view.tokens_after > 0 or view.polls_owned > 0
    return not had_a_slot, math.inf if view.first_token_s is None else view.first_token_s


class LateRows(ArmRows):
    """One arm of a late-arrival run: A decodes, the others come late.

    Args:
        data: the recorded run.
        name: the arm.
    """

    @property
    def a(self) -> dict[str, Any]:
        """The early request's record."""
        return self.requests["A"]

    def view(self) -> ArmView:
        """Reduce the arm to what a verdict needs."""
        if trouble := self._trouble():
            return ArmView(self.name, trouble=trouble)
        late = tuple(self._late(label) for label in self.requests if label != "A")
        slots = self.effective.get("slots") or 2
        return ArmView(
            self.name,
            late=tuple(sorted(late, key=_first_served)),
            a_tokens=len(self.times["A"]),
            eligible=min(len(late), slots - 1),
            chance_needed=self._chance_needed(),
            slots_speak=self._slots_speak(),
            attached=self.attached,
        )

    def _chance_needed(self) -> int:
        """Return how many steps the late prompts may need to enter: A gets a token in each of them."""
        prompts = sum(n for label, n in (self.facts.get("prompt_tokens") or {}).items() if label != "A")
        batch = self.effective.get("batch_size") or self.asked.get("batch_size") or 1
        return MIN_CHANCE_TOKENS + 2 * math.ceil(int(prompts) / int(batch))

    def _slots_speak(self) -> bool:
        return any(slot["seed"] is not None for poll in self.polls for slot in poll["slots"])

    def _trouble(self) -> tuple[str, str] | None:
        """Return why this arm can't be judged and what to change, or None."""
        checks = (
            self._incomplete,
            self._cold,
            self._too_few_slots,
            self._strangers,
            self._a_trouble,
            self._late_trouble,
        )
        return next((trouble for check in checks if (trouble := check())), None)

    def _cold(self) -> tuple[str, str] | None:
        failed = [row for row in self.warm_up if row["outcome"] not in ("completed", "slot_limit")]
        if failed:
            why = f"{len(failed)} of {len(self.warm_up)} warm-up requests failed ({failed[0]['outcome']})"
            return f"{why}: the slots were not all used before", "the server's log says more"
        return None

    def _incomplete(self) -> tuple[str, str] | None:
        ran = {"load_start_s", "load_end_s"} <= set(self.facts) and "A" in self.requests and len(self.requests) > 1
        if not ran or not all(self._whole(label) for label in self.requests):
            return (
                f"the {self.name} arm did not run to its end",
                "run it again; the run folder says how far it came",
            )
        if not self.facts.get("server_alive", True):
            how = self.facts.get("server_exit") or "ended"
            why = f"the server of the {self.name} arm {how} in the middle of the run"
            return why, f"run it again; its log is server-{self.name}.log"
        return None

    def _whole(self, label: str) -> bool:
        """Whether what the record says of a request holds together: tokens have times, and so has its sending."""
        request = self.requests[label]
        times = [request["sent_s"], request["first_token_s"], *self.times[label]]
        return not self.times[label] or all(isinstance(time, int | float) for time in times)

    def _too_few_slots(self) -> tuple[str, str] | None:
        slots = self.effective.get("slots")
        if slots is not None and slots < 2:
            return f"with slots = {slots} B could not own one beside A", "parallel = 2"
        return None

    def _strangers(self) -> tuple[str, str] | None:
        ours = {request["seed"] for request in self.requests.values()}
        since_s = self.facts["load_start_s"]
        during = [poll for poll in self.polls if since_s <= poll["sent_s"] <= self.facts["load_end_s"]]
        seeds = {s["seed"] for poll in during for s in poll["slots"] if s["busy"] and s["seed"] is not None} - ours
        if seeds:
            return (
                f"{len(seeds)} task(s) in /slots are not ours: another client uses this server",
                "a quiet server",
            )
        if len({len(poll["slots"]) for poll in self.polls}) > 1:
            return "the number of slots in /slots changes: several servers answer it", "the address of one server"
        if self.polls and self.facts.get("quiet_after_s") is None:
            return "the server was not idle before the load", "a quiet server"
        return None

    def _a_trouble(self) -> tuple[str, str] | None:
        if not self.times["A"]:
            return (
                f"A got no token ({self.a['outcome']}: {self.a['error']})",
                "start_timeout_s, or a faster model",
            )
        if self.a["outcome"] not in ("completed", "slot_limit"):
            return f"A ended as {self.a['outcome']}: {self.a['error']}", "the server's log says more"
        return None

    def _late_trouble(self) -> tuple[str, str] | None:
        for label, request in self.requests.items():
            if label != "A" and request["outcome"] == "not_sent":
                hint = "a larger a_tokens, a smaller trigger_tokens, or a larger start_timeout_s"
                return f"{label} was never sent: {request['error']}", hint
            if request["outcome"] not in ("completed", "slot_limit"):
                return (
                    f"{label} ended as {request['outcome']}: {request['error']}",
                    "the server's log says more",
                )
            if not self.times[label]:
                return f"{label} was answered without a single token", "a larger b_tokens"
        return None

    def tokens_after(self, at_s: float) -> int:
        """Count A's tokens after a moment, as far as the server's own duration of A's decoding allows.

        predicted_ms runs from A's first token to its last (tools/server/server-task.cpp), and the client
        can't have got the first one before it was made: so A had ended at first_token_s + predicted_ms.
        """
        after = sum(t > at_s for t in self.times.get("A", []))
        duration_s, step_s = self._a_decoding()
        if duration_s is None or not after:
            return after
        end_s = float(self.a["first_token_s"]) + duration_s
        if self.times["A"][-1] - end_s < LAG_STEPS * step_s:
            return after if at_s < end_s else 0
        return min(after, max(0, math.ceil((end_s - at_s) / step_s)))

    def surely_after(self, at_s: float) -> int | None:
        """Count the tokens that A had left at the least: it can't have ended before its sending, its
        prefill and its decoding were over, by the server's own durations."""
        duration_s, step_s = self._a_decoding()
        if duration_s is None:
            return None
        end_s = float(self.a["sent_s"]) + (timing(self.a, "prompt_ms") or 0.0) / 1e3 + duration_s
        return max(0, math.floor((end_s - at_s) / step_s))

    def _prefilled_beside(self, request: dict[str, Any], first_s: float) -> bool:
        prompt_ms = timing(request, "prompt_ms")
        return prompt_ms is not None and (self.surely_after(first_s - prompt_ms / 1e3) or 0) > 0

    def _a_decoding(self) -> tuple[float | None, float]:
        """Return how long A decoded by the server's clock, and for how long a token."""
        a = self.requests.get("A", {})
        decoded_ms, tokens = timing(a, "predicted_ms"), timing(a, "predicted_n")
        placed = a.get("sent_s") is not None and a.get("first_token_s") is not None
        if not placed or not decoded_ms or not tokens or tokens < 2:
            return None, 0.0
        return decoded_ms / 1e3, decoded_ms / 1e3 / (tokens - 1)

    def _late(self, label: str) -> LateView:
        request, a_times = self.requests[label], self.times["A"]
        sent_s, first_s, a_last_s = request["sent_s"], self.times[label][0], a_times[-1]
        waiting = [p for p in self.polls if p["sent_s"] >= sent_s and p["received_s"] <= a_last_s]
        inside = self._inside(first_s, self.times[label][-1])
        return LateView(
            label=label,
            outcome=request["outcome"],
            sent_s=sent_s,
            first_token_s=first_s,
            tokens_before=sum(sent_s < t <= first_s for t in a_times),
            tokens_after=self.tokens_after(first_s),
            reads_after=len({t for t in a_times if t > first_s}),
            surely_after=self.surely_after(first_s),
            prefilled_beside=self._prefilled_beside(request, first_s),
            window_s=max(0.0, a_last_s - sent_s),
            chance_tokens=self._chance_tokens(request["seed"]),
            polls_waiting=len(waiting),
            polls_owned=sum(self._owns(p, request["seed"]) for p in waiting),
            elsewhere=self._elsewhere(request) or self._elsewhere(self.a),
            timed=timing(request, "prompt_ms") is not None and self._a_decoding()[0] is not None,
            polls_joined=self._joined_polls(request["seed"]),
            polls_inside=len(inside),
            polls_inside_seen=sum(self._owns(self.polls[i], request["seed"]) for i in inside),
            polls_inside_fresh=sum(request["seed"] in self.fresh[i] for i in inside),
        )

    def _elsewhere(self, request: dict[str, Any]) -> bool:
        """Whether /slots shows a request on another slot than the server's own answer to it names."""
        shown = {s["id"] for poll in self.polls for s in poll["slots"] if s["busy"] and s["seed"] == request["seed"]}
        return request["id_slot"] is not None and bool(shown) and shown != {request["id_slot"]}

    def _chance_tokens(self, seed: int) -> int:
        """Count A's steps by its own counter while the request owned a slot and did not progress."""
        decoded = [
            slot["n_decoded"]
            for poll, fresh in zip(self.polls, self.fresh, strict=True)
            if self._owns(poll, seed) and seed not in fresh and self.a["seed"] in fresh
            for slot in poll["slots"]
            if slot["busy"] and slot["seed"] == self.a["seed"] and slot["n_decoded"] is not None
        ]
        return max(decoded) - min(decoded) if decoded else 0

    def _inside(self, first_s: float, last_s: float) -> list[int]:
        return [i for i, p in enumerate(self.polls) if p["sent_s"] >= first_s and p["received_s"] <= last_s]

    @staticmethod
    def _owns(poll: dict[str, Any], seed: int) -> bool:
        return any(slot["busy"] and slot["seed"] == seed for slot in poll["slots"])

    def _joined_polls(self, seed: int) -> int:
        return sum(
            seed in fresh and self.a["seed"] in fresh and self._owns(poll, self.a["seed"])
            for poll, fresh in zip(self.polls, self.fresh, strict=True)
        )
