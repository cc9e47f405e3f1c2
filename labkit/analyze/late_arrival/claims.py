"""The two claims of notebook 03: a late request joined the batch, and did so because of continuous batching.

Two sources are judged apart and then compared: the client's streams (what came when) and /slots (what
the server said of itself). The streams decide; /slots may have missed something between two polls, but
what it positively contradicts is not decided.

Why the order of tokens proves joining: without continuous batching a prompt enters the batch only when
no slot generates (tools/server/server-context.cpp, update_slots). A token of A that was decoded after
B's first one is then impossible, whatever /slots shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from labkit.analyze.late_arrival.view import ArmView, LateRows, LateView
from labkit.analyze.rows import RunRows
from labkit.analyze.verdict import INCONCLUSIVE, NOT_TESTED, REFUTED, SUPPORTED, Check, Verdict

TREATMENT, CONTROL = "treatment", "control"
JOINED, KEPT_OUT, UNDECIDED = "joined", "kept_out", "undecided"

# A client that stalls or falls behind may read B's first token before A's last ones. So many of A's
# tokens must come after it in separate reads, and be still to come by the server's own durations.
MIN_AFTER = 3
# Polls that must contradict before a source is doubted.
MIN_POLLS = 5

MORE_TOKENS = "a larger a_tokens, so that A decodes longer after the late request came"
ANOTHER_SERVER = "does another server answer /slots? Run it again"


@dataclass(frozen=True)
class Answer:
    """Whether late requests joined in one arm, why, and what to change if it can't be said."""

    what: str
    observed: str
    why: str
    hint: str = ""


def late_joined(arm: ArmView) -> Answer:
    """Say whether the late requests that had a slot joined A's batch."""
    if arm.trouble:
        return Answer(UNDECIDED, "not to be judged", *arm.trouble)
    eligible = arm.late[: arm.eligible]
    observed = "; ".join(_describe(view, arm) for view in eligible)
    answers = [_one_joined(view, arm) for view in eligible]
    for kind in (UNDECIDED, KEPT_OUT):
        for what, why, hint in answers:
            if what == kind:
                return Answer(what, observed, why, hint)
    return Answer(JOINED, observed, answers[0][1])


def _one_joined(view: LateView, arm: ArmView) -> tuple[str, str, str]:
    """Return what, why and a hint for one late request, from both sources."""
    streams, slots = _streams_say(view), _slots_say(view, arm)
    if {streams, slots} == {JOINED, KEPT_OUT} or (streams == JOINED and _hidden(view, arm)):
        return UNDECIDED, f"the sources contradict each other: {_contradiction(view, slots)}", ANOTHER_SERVER
    if arm.attached and view.elsewhere:
        return UNDECIDED, f"/slots shows A or {view.label} on another slot than its own answer names", ANOTHER_SERVER
    if streams == JOINED and arm.attached and not view.polls_joined:
        return _several_servers(view, arm)
    if streams == JOINED:
        return JOINED, f"A went on decoding after {view.label}'s first token: both were in the same steps", ""
    if streams == UNDECIDED and view.surely_after is None:
        return UNDECIDED, "the server gives no timings of A to check the order of arrival with", "a newer build"
    if streams == UNDECIDED:
        why = f"A had about {view.tokens_after} tokens left at {view.label}'s first one: too few to rule out chance"
        return UNDECIDED, why, MORE_TOKENS
    return _kept_out(view, arm, slots)


def _several_servers(view: LateView, arm: ArmView) -> tuple[str, str, str]:
    """Doubt an order of tokens that two servers behind one address could have made."""
    if not arm.slots_speak:
        why = "/slots can't be read, and behind this address there may be several servers: each could serve one request"
        return UNDECIDED, why, "the address of one llama-server that offers /slots, without a proxy between"
    why = (
        f"no poll of /slots showed A and {view.label} progress on one server: there may be several behind this address"
    )
    return UNDECIDED, why, "the address of one server; if it is one, a larger b_tokens or poll_hz"


def _streams_say(view: LateView) -> str:
    if view.reads_after >= MIN_AFTER and (view.surely_after or 0) >= MIN_AFTER:
        return JOINED
    return KEPT_OUT if view.tokens_after == 0 else UNDECIDED


def _slots_say(view: LateView, arm: ArmView) -> str:
    if view.polls_joined:
        return JOINED
    return KEPT_OUT if view.chance_tokens >= arm.chance_needed else UNDECIDED


def _hidden(view: LateView, arm: ArmView) -> bool:
    """Whether /slots hid, poll after poll, a request whose tokens were coming."""
    return arm.slots_speak and view.polls_inside >= MIN_POLLS and view.polls_inside_fresh == 0


def _contradiction(view: LateView, slots: str) -> str:
    if slots == JOINED:
        return f"/slots saw {view.label} progress beside A in {view.polls_joined} polls, the streams did not"
    if view.polls_inside >= MIN_POLLS and view.polls_inside_seen == 0:
        return f"the stream brought {view.label}'s tokens, but /slots never showed it in {view.polls_inside} polls"
    return f"/slots showed {view.label} on a slot without progress, while the stream brought its tokens"


def _kept_out(view: LateView, arm: ArmView, slots: str) -> tuple[str, str, str]:
    """Decide whether a late request that got nothing while A decoded had its chance."""
    if not arm.slots_speak:
        # it may have been held before the server: the streams alone can't tell
        why = f"{view.label} got nothing until A ended, and /slots does not tell whether it had a slot"
        return UNDECIDED, why, "slots_endpoint = True"
    if not view.timed:
        return (
            UNDECIDED,
            f"the server gives no timings of A and {view.label} to tell waiting from prefill",
            "a newer build",
        )
    if view.prefilled_beside:
        return UNDECIDED, f"{view.label}'s prompt was being processed when A ended", MORE_TOKENS
    if slots == KEPT_OUT:
        chance = f"{view.label} owned a slot while A decoded at least {view.chance_tokens} tokens"
        return KEPT_OUT, f"{chance}, and got none until A ended", ""
    if view.polls_owned == 0 and view.polls_waiting >= MIN_POLLS:
        why = f"{view.label} was on no slot in {view.polls_waiting} polls while A decoded: something held it before"
        return UNDECIDED, why, "look at what stands between client and server, threads_http for one"
    seen = f"/slots saw A decode {view.chance_tokens} tokens while {view.label} had a slot"
    return UNDECIDED, f"{seen}, {arm.chance_needed} are needed", MORE_TOKENS


def _describe(view: LateView, arm: ArmView) -> str:
    text = f"after {view.label}'s first token A got {view.tokens_after} of its {arm.a_tokens} tokens"
    if not arm.slots_speak:
        return f"{text}; /slots does not tell"
    return f"{text}; /slots saw both progress in {view.polls_joined} polls"


# --- the two claims ---------------------------------------------------------------------------------


def judge_late_arrival(data: RunRows) -> Verdict:
    """Judge the claims of 03: the late request joined, and it did because of continuous batching.

    Args:
        data: the recorded run; arms "treatment" and, unless control was off, "control".
    """
    treatment_arm = LateRows(data, TREATMENT)
    treatment = late_joined(view := treatment_arm.view())
    joined = _joined_check(treatment, view)
    if treatment_arm.attached:
        why = "its control needs the same server started without it, and a server that isn't ours is never restarted"
        return Verdict((joined, _because(NOT_TESTED, "no control arm was run", why)))
    if not data.run.get("parameters", {}).get("control", True):
        return Verdict((joined, _because("not_tested", "no control arm was run", "the parameter control is off")))
    control_arm = LateRows(data, CONTROL)
    control_view = control_arm.view()
    # an arm that can't be judged is reported as that, not as one that differs
    difference = "" if control_view.trouble else _difference(treatment_arm, control_arm)
    return Verdict((joined, _because_check(treatment, late_joined(control_view), difference)))


def _joined_check(answer: Answer, view: ArmView) -> Check:
    status = {JOINED: SUPPORTED, KEPT_OUT: REFUTED}.get(answer.what, INCONCLUSIVE)
    return Check(
        name="joined",
        claim="the late request joined the running batch",
        status=status,
        observed=answer.observed,
        expected="tokens of A after the late request's first one",
        why=answer.why,
        hint=answer.hint,
        numbers={late.label: asdict(late) for late in view.late},
    )


def _because_check(treatment: Answer, control: Answer, difference: str) -> Check:
    if treatment.what != JOINED:
        what = "did not join" if treatment.what == KEPT_OUT else "can't be said to have joined"
        return _because(NOT_TESTED, control.observed, f"the late request {what}, so there is nothing to explain")
    if difference:
        return _because(
            INCONCLUSIVE, control.observed, f"the arms differ in more than continuous batching: {difference}"
        )
    if control.what == KEPT_OUT:
        return _because(SUPPORTED, control.observed, f"without continuous batching {control.why}")
    if control.what == JOINED:
        return _because(
            REFUTED, control.observed, "it joined without continuous batching too: something else lets it in"
        )
    return _because(INCONCLUSIVE, control.observed, f"the control can't be judged: {control.why}", control.hint)


def _because(status: str, observed: str, why: str, hint: str = "") -> Check:
    return Check(
        name="because",
        claim="it joined because of continuous batching",
        status=status,
        observed=observed,
        expected="without continuous batching: no token of A after the late request's first one",
        why=why,
        hint=hint,
    )


def _difference(treatment: LateRows, control: LateRows) -> str:
    """Name what differs between two arms that should differ in continuous batching alone."""
    if (treatment.asked.get("cont_batching"), control.asked.get("cont_batching")) != (True, False):
        return "continuous batching was not asked to be on in one and off in the other"
    names: dict[str, Callable[[LateRows], Any]] = {
        "requests": lambda arm: arm.facts.get("planned"),
        "prompt lengths": lambda arm: arm.facts.get("prompt_tokens"),
        "asked settings": lambda arm: arm.asked | {"cont_batching": None, "port": None},
        "effective settings": lambda arm: arm.effective,
        "model": lambda arm: _of_server(arm, "model").get("sha256"),
        "build": lambda arm: _of_server(arm, "build").get("number"),
    }
    return ", ".join(name for name, value in names.items() if value(treatment) != value(control))


def _of_server(arm: LateRows, part: str) -> dict[str, Any]:
    return (arm.facts.get("server") or {}).get(part) or {}
