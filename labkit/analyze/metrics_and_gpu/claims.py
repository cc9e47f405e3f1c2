"""The claims of notebook 04: what llama-server says of itself agrees with what its clients saw.

Each claim on a counter compares two witnesses: /metrics, and the streams or the plan. Why fewer calls of
llama_decode than tokens prove sharing: a call yields at most one token for each sequence in its batch
(tools/server/server-context.cpp). The same requests one after another show that this holds here.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from labkit.analyze.metrics_and_gpu.counters import Growth, counting_rules
from labkit.analyze.metrics_and_gpu.memory_checks import gpu_check, resident_check
from labkit.analyze.metrics_and_gpu.view import AT_ONCE, METRICS_OFF, ONE_BY_ONE, CounterArm, QuietScrape
from labkit.analyze.readings import max_overlap
from labkit.analyze.rows import RunRows, timing
from labkit.analyze.verdict import INCONCLUSIVE, NOT_TESTED, REFUTED, SUPPORTED, Check, Verdict

# so many samples must speak before a claim on samples is made, or denied
MIN_SAMPLES = 3
# tokens per call of llama_decode from which on a load is said to have shared its steps
MIN_TOKENS_PER_CALL = 1.25
LONGER = "a larger answer_tokens or metrics_hz"
Outcome = tuple[str, str, str, str]  # status, observed, why, hint


def judge_metrics_and_gpu(data: RunRows) -> Verdict:
    """Judge the claims of 04 from the recorded run alone.

    Args:
        data: the recorded run; arms "at_once" and, unless switched off, "one_by_one" and "metrics_off".
    """
    load, serial = CounterArm(data, AT_ONCE), CounterArm(data, ONE_BY_ONE)
    contrast = _contrast_check(serial, load, asked=data.run.get("parameters", {}).get("one_by_one", True))
    return Verdict(
        (
            _processing_check(load),
            _deferred_check(load),
            _counter_check(load, "prompt_tokens_total", "prompt_n", "prompt tokens"),
            _counter_check(load, "tokens_predicted_total", "predicted_n", "decoded tokens"),
            _shared_check(load, contrast),
            contrast,
            resident_check(load, data.run),
            gpu_check(load, data.run),
            _off_check(load, data.run),
        )
    )


def _settled(arm: CounterArm, *names: str) -> Outcome | None:
    """Return the outcome of a claim on these metrics that can't be judged on this arm, or None."""
    if why := arm.not_scraped():
        return NOT_TESTED, "nothing", why, ""
    if trouble := arm.metrics_trouble():
        return INCONCLUSIVE, "not to be judged", *trouble
    if why := arm.missing(*names):
        return (NOT_TESTED if "not exposed" in why else INCONCLUSIVE), "nothing", why, ""
    return None


def _check(name: str, claim: str, expected: str, outcome: Outcome, **numbers: Any) -> Check:
    status, observed, why, hint = outcome
    return Check(name, claim, status, observed, expected, why, hint, numbers)


# --- slots and queue ------------------------------------------------------------------------------------


def _processing_check(arm: CounterArm) -> Check:
    return _check(
        "processing",
        "never more requests processing than slots",
        f"requests_processing at most {arm.slots or 'the number of slots'}, and that many when all slots are full",
        _settled(arm, "requests_processing") or _processing(arm),
    )


def _processing(arm: CounterArm) -> Outcome:
    if arm.slots is None:
        return INCONCLUSIVE, "nothing to compare with", "the number of slots is not known", "server_argv"
    said = arm.said("requests_processing")
    most = max(said, default=0.0)
    observed = f"at most {most:.0f} on {arm.slots} slots, in {len(said)} scrapes during the load"
    if most > arm.slots:
        return REFUTED, observed, "more requests were processing than there are slots", ""
    full = sum(value == min(arm.slots, len(arm.requests)) for value in said)
    if full < MIN_SAMPLES:
        return INCONCLUSIVE, observed, f"only {full} scrapes saw all slots busy: too few to say", LONGER
    return SUPPORTED, observed, f"{full} scrapes saw every slot busy, none saw more", ""


def _deferred_check(arm: CounterArm) -> Check:
    return _check(
        "deferred",
        "requests beyond the slots are counted as deferred, and none when there are none",
        "requests_deferred above 0 while more requests are open than slots, in every scrape a step away from"
        " arrivals and ends; 0 otherwise",
        _settled(arm, "requests_deferred") or _deferred(arm),
        scrapes=[asdict(scrape) for scrape in arm.quiet_scrapes],
    )


def _deferred(arm: CounterArm) -> Outcome:
    if arm.slots is None:
        return INCONCLUSIVE, "nothing to compare with", "the number of slots is not known", "server_argv"
    if len(arm.requests) <= arm.slots:
        why = f"{len(arm.requests)} requests on {arm.slots} slots: none had to wait"
        return INCONCLUSIVE, "no request beyond the slots", why, f"n_requests = {arm.slots + 3}"
    scrapes = [scrape for scrape in arm.quiet_scrapes if scrape.deferred is not None]
    beyond = [scrape for scrape in scrapes if scrape.open_requests > arm.slots]
    counted = sum(bool(scrape.deferred) for scrape in beyond)
    exact = sum(scrape.deferred == scrape.open_requests - arm.slots for scrape in beyond)
    wrong = [scrape for scrape in scrapes if not _may_be(scrape, arm.slots)]
    observed = (
        f"above 0 in {counted} of {len(beyond)} such scrapes, exactly the requests beyond the slots in {exact}; at"
        f" most {max(arm.said('requests_deferred'), default=0):.0f}"
    )
    if wrong:
        return _deferred_wrong(arm, wrong, observed)
    if len(beyond) < MIN_SAMPLES:
        why = f"only {len(beyond)} scrapes were a whole step away from every arrival and end"
        return INCONCLUSIVE, observed, why, LONGER
    if exact < len(beyond):
        return SUPPORTED, observed, "the server counts a queue; some requests waited before it, in the HTTP layer", ""
    return SUPPORTED, observed, "the streams and the server count the same queue", ""


def _may_be(scrape: QuietScrape, slots: int) -> bool:
    """Whether this many may be deferred: some if any request is beyond the slots, and no more than these."""
    beyond = max(0, scrape.open_requests - slots)
    return bool(scrape.deferred) == bool(beyond) and (scrape.deferred or 0) <= beyond


def _deferred_wrong(arm: CounterArm, wrong: list[QuietScrape], observed: str) -> Outcome:
    threads = arm.rows.asked.get("threads_http")
    first = wrong[0]
    what = f"{len(wrong)} scrapes disagree, one with {first.open_requests} requests open and {first.deferred:.0f}"
    what += " deferred"
    if threads and first.open_requests > threads:
        return INCONCLUSIVE, observed, f"{what}: {threads} HTTP threads hold requests back", "threads_http = None"
    if arm.attached:
        return (
            INCONCLUSIVE,
            observed,
            f"{what}: a proxy may hold requests, or another client be there",
            "a quiet server",
        )
    if len(wrong) < MIN_SAMPLES:
        return INCONCLUSIVE, observed, f"{what}: too few to rule out a delay on the way", "run it again"
    return REFUTED, observed, what, ""


# --- counters against streams ---------------------------------------------------------------------------


def _counter_check(arm: CounterArm, name: str, timing: str, noun: str) -> Check:
    rules = counting_rules(arm.build)
    when = {"prompt_tokens_total": "prompt", "tokens_predicted_total": "predicted"}[name]
    rule = f" ({rules.builds}: {getattr(rules, when)})" if rules else ""
    return _check(
        name,
        f"{name} agrees with the streams",
        f"it grows by the sum of the answers' {timing}, as far as its six digits tell{rule}",
        _settled(arm, name) or _counter(arm, name, timing, noun),
    )


def _counter(arm: CounterArm, name: str, timing: str, noun: str) -> Outcome:
    if counting_rules(arm.build) is None:
        build = f"b{arm.build}" if arm.build else "a build that isn't known"
        return NOT_TESTED, f"it grew by {_amount(arm.grown(name))}", f"what {build} counts when was not looked at", ""
    total, grown = arm.timed(timing), arm.grown(name)
    if total is None:
        return INCONCLUSIVE, "nothing to compare with", "an answer came without the server's timings", "a newer build"
    observed = f"it grew by {_amount(grown)}; the answers name {total:,.0f} {noun}"
    if timing == "predicted_n":
        observed += f", the streams brought {arm.streamed:,} pieces of text"
    lost = timing == "predicted_n" and grown.amount is not None and arm.streamed > grown.amount + grown.error
    if grown.agrees(total) and not lost:
        return SUPPORTED, observed, "two witnesses count the same", ""
    if arm.attached:
        why = "they differ: another client between two polls, or a second server behind the address, would do that"
        return INCONCLUSIVE, observed, why, "a quiet server, without a balancer before it"
    return REFUTED, observed, "the client got more than was counted" if lost else "they count differently", ""


def _amount(grown: Growth) -> str:
    if grown.amount is None:
        return grown.missing
    return f"{grown.amount:,.0f}" + (f" ± {grown.error:,.0f}" if grown.error else "")


# --- what shows batching --------------------------------------------------------------------------------


def _shared_check(arm: CounterArm, contrast: Check) -> Check:
    return _check(
        "shared_steps",
        "requests that ran at once shared calls of llama_decode",
        f"n_decode_total grows by far less than the tokens streamed: {MIN_TOKENS_PER_CALL:g} tokens a call or more",
        _settled(arm, "n_decode_total") or _shared(arm, contrast),
        busy_slots_per_call=arm.busy_per_call.amount,
    )


def _shared(arm: CounterArm, contrast: Check) -> Outcome:
    calls = arm.grown("n_decode_total")
    if not calls.amount:
        return INCONCLUSIVE, f"{_amount(calls)} calls", "no call was counted over the load", "run it again"
    observed = f"{_amount(calls)} calls for {arm.streamed:,} tokens: {arm.streamed / calls.amount:.2f} tokens a call"
    if arm.slots is not None and arm.slots < 2:
        return INCONCLUSIVE, observed, "with one slot nothing can share a step", "parallel = 2"
    if contrast.status == REFUTED:
        return INCONCLUSIVE, observed, f"calls can't be read as steps here: {contrast.why}", contrast.hint
    if any(timing(row, "draft_n") for row in arm.requests):
        return INCONCLUSIVE, observed, "a draft model gives a request several tokens a call", "a server without one"
    if arm.streamed > calls.amount and not _ran_together(arm):
        return INCONCLUSIVE, observed, "no two requests ran at once", "a larger answer_tokens or n_requests"
    if arm.streamed >= MIN_TOKENS_PER_CALL * (calls.amount + calls.error):
        return SUPPORTED, observed, "a call gives a request one token at most, so calls were shared", ""
    if max(arm.streamed, arm.timed("predicted_n") or 0) > calls.amount:
        why = "few calls were shared, or many tokens came without text: too few to say"
        return INCONCLUSIVE, observed, why, "a larger answer_tokens or parallel"
    if not _ran_together(arm):
        return INCONCLUSIVE, observed, "no two requests ran at once", "a larger answer_tokens or n_requests"
    return REFUTED, observed, "a call for every token, although several requests ran at once", ""


def _ran_together(arm: CounterArm) -> bool:
    spans = [(times[0], times[-1]) for times in arm.rows.times.values() if len(times) > 1]
    return max_overlap(spans) > 1


def _contrast_check(arm: CounterArm, load: CounterArm, *, asked: bool) -> Check:
    return _check(
        "one_after_another",
        "one after another, the same requests take a call for every token",
        "n_decode_total grows by the tokens, and by a few calls for prompts at most",
        _no_contrast(load, asked=asked) or _settled(arm, "n_decode_total") or _contrast(arm),
        busy_slots_per_call=arm.busy_per_call.amount,
    )


def _no_contrast(load: CounterArm, *, asked: bool) -> Outcome | None:
    if load.attached:
        return NOT_TESTED, "not run", "it would double the load on a server that isn't ours", ""
    if not asked:
        return NOT_TESTED, "not run", "the parameter one_by_one is off", ""
    return None


def _contrast(arm: CounterArm) -> Outcome:
    spans = [(row["sent_s"], row["end_s"]) for row in arm.requests if None not in (row["sent_s"], row["end_s"])]
    if (at_once := max_overlap(spans)) > 1:
        return INCONCLUSIVE, f"{at_once} requests in flight at once", "they were not sent one after another", ""
    calls, tokens = arm.grown("n_decode_total"), arm.timed("predicted_n")
    if tokens is None:
        return INCONCLUSIVE, f"{_amount(calls)} calls", "an answer came without the server's timings", "a newer build"
    observed = f"{_amount(calls)} calls for {tokens:,.0f} tokens"
    if calls.amount is None:
        return INCONCLUSIVE, observed, calls.missing, "run it again"
    if calls.amount < tokens - calls.error:
        why = "fewer calls than tokens with one request at a time (speculative decoding makes that)"
        return REFUTED, observed, why, "a server without a draft model"
    if calls.amount > tokens + calls.error + (spare := _prompt_calls(arm)):
        return REFUTED, observed, f"more than the {tokens:,.0f} tokens and {spare} calls that prompts can take", ""
    return SUPPORTED, observed, "alone, each token takes a call of its own", ""


def _prompt_calls(arm: CounterArm) -> int:
    """Return how many calls beyond one a token the prompts may take at most.

    A prompt goes in by batches, and models with a sliding window end it with two short ones
    (tools/server/server-context.cpp); its last call yields the first token.
    """
    batch = arm.rows.effective.get("batch_size") or arm.rows.asked.get("batch_size") or 1
    prompts = (arm.facts.get("prompt_tokens") or {}).values()
    return sum(math.ceil(int(prompt) / int(batch)) + 1 for prompt in prompts)


# --- /metrics off ---------------------------------------------------------------------------------------


def _off_check(load: CounterArm, run: dict[str, Any]) -> Check:
    return _check(
        "metrics_off",
        "a server without --metrics says so",
        "501, and a message that names the flag",
        _off(load, ((run.get("arms") or {}).get(METRICS_OFF) or {}).get("answer")),
    )


def _off(load: CounterArm, answer: dict[str, Any] | None) -> Outcome:
    if load.attached:
        return NOT_TESTED, "not asked", "it needs a server started without the flag, and this one isn't ours", ""
    if answer is None:
        return INCONCLUSIVE, "not asked", "no server without the flag was started in this run", "run it again"
    observed = f"{answer['status']}: {answer['said']}"
    if answer["status"] is None:
        return INCONCLUSIVE, observed, "there was no answer", "run it again"
    if answer["status"] == 501 and "`--metrics`" in str(answer["said"]):
        return SUPPORTED, observed, "off is told apart from no data", ""
    return REFUTED, observed, "it answers something else", ""
