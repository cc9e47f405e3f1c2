"""Sentences that read the pictures and tables of notebook 04 out, with the numbers of this very run."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from labkit.analyze.frames import RunFrames
from labkit.analyze.metrics_and_gpu.counters import METRICS, NOT_EXPOSED, rate, why_missing
from labkit.analyze.metrics_and_gpu.memory_checks import MIB, cells_mib, memory_change, tolerance_mib
from labkit.analyze.metrics_and_gpu.view import AT_ONCE, METRICS_OFF, OFF, CounterArm

GAUGE = "predicted_tokens_seconds"
# share of scrapes that make a rule: the client sees an end a moment after the server
MOSTLY = 0.9


def no_metrics(view: CounterArm) -> str:
    """Return why an arm has no scrapes, as a sentence; empty if it has some."""
    if view.scrapes:
        return ""
    return f"No /metrics: {view.not_scraped() or (OFF if view.off else 'no scrape could be read')}."


def queue_reading(frames: RunFrames) -> str:
    """Say how many requests were processing and deferred at most, in each arm, and what the client knows."""
    sentences = []
    for arm in frames.arms:
        view = CounterArm(frames.data, arm)
        if why := no_metrics(view):
            sentences.append(why)
            continue
        most = [max(view.said(name), default=0) for name in ("requests_processing", "requests_deferred")]
        beyond = [s for s in view.quiet_scrapes if view.slots and s.open_requests > view.slots]
        exact = sum(s.deferred == s.open_requests - (view.slots or 0) for s in beyond)
        text = f"{_upper(frames.arm_name(arm))}: at most {most[0]:.0f} processing and {most[1]:.0f} deferred"
        if beyond:
            text += f"; in {exact} of {len(beyond)} scrapes away from arrivals and ends, exactly the requests beyond"
            text += f" the {view.slots} slot{'s' * (view.slots != 1)} were deferred"
            if fewer := sum((s.deferred or 0) < s.open_requests - (view.slots or 0) for s in beyond):
                text += f", fewer in {fewer}: suspect the HTTP layer, which holds what the server has not taken in"
        sentences.append(f"{text}.")
    return " ".join(sentences) or "No request was sent."


def calls_reading(frames: RunFrames) -> str:
    """Say how many tokens a call of llama_decode gave, in each arm, and how many slots were busy."""
    sentences = []
    for arm in frames.arms:
        view = CounterArm(frames.data, arm)
        calls, busy = view.grown("n_decode_total"), view.busy_per_call
        name = _upper(frames.arm_name(arm))
        if not calls.amount:
            sentences.append(no_metrics(view) or f"{name}: calls of llama_decode: {calls.missing or 'none'}.")
            continue
        text = f"{name}: {view.streamed:,} tokens in {calls.amount:,.0f} calls of llama_decode,"
        text += f" {view.streamed / calls.amount:.2f} tokens a call"
        text += f", with {busy.amount:.2f} busy slots a call" if busy.amount is not None else ""
        sentences.append(f"{text}.")
    return " ".join(sentences) or "No request was sent."


def memory_reading(frames: RunFrames) -> str:
    """Say by how much memory grew during the load, beside what its KV cells take."""
    view, limit = CounterArm(frames.data, AT_ONCE), tolerance_mib(frames.data.run)
    sentences = []
    for what, kind in (("Resident memory of the server's process", "resident_bytes"), ("GPU memory", "gpu_used_bytes")):
        if change := memory_change(view, kind):
            sentences.append(
                f"{what}: {change.before_bytes / MIB:,.0f} MiB before the load, at most {change.growth_mib:+.1f} MiB"
                f" during it (tolerance {limit:g} MiB)."
            )
    if not sentences:
        return "Memory was not sampled" + (": the server isn't ours." if view.attached else ".")
    busy = frames.memory[frames.memory["arm"] == AT_ONCE]["gpu_utilisation_percent"].dropna()
    if len(busy):
        sentences.append(f"The busiest GPU was {int(busy.min())} to {int(busy.max())} % utilised.")
    if (cells := cells_mib(view)) is not None:
        sentences.append(f"The KV cells of the requests that ran at once take {cells:.1f} MiB.")
    return " ".join(sentences)


def names_reading(frames: RunFrames) -> str:
    """Say which names that dashboards look for this build doesn't expose, and which have no value yet."""
    view = CounterArm(frames.data, AT_ONCE)
    if why := no_metrics(view):
        return why
    last = view.scrapes[-1].values
    missing = [name for name in METRICS if why_missing(last, name) == NOT_EXPOSED]
    empty = [name for name in last if last[name] is None]
    text = f"Not exposed by this build: {', '.join(missing) or 'none of the names looked for'}."
    return text + (f" No value yet: {', '.join(empty)}." if empty else "")


def off_reading(frames: RunFrames) -> str:
    """Say what a server without --metrics answered."""
    answer = ((frames.data.run["arms"].get(METRICS_OFF)) or {}).get("answer")
    if answer is None:
        return "No server without --metrics was asked."
    return (
        f"Without --metrics, /metrics answers {answer['status']}: {answer['said']} A dashboard that takes this for"
        " missing data shows a dash for ever."
    )


def calls_prediction_reading(frames: RunFrames, predicted: int) -> str:
    """Compare the prediction with what was measured.

    Args:
        frames: the run.
        predicted: calls of llama_decode for all answers together.
    """
    view = CounterArm(frames.data, AT_ONCE)
    calls = view.grown("n_decode_total")
    found = f"{calls.amount:,.0f} calls for {view.streamed:,} tokens" if calls.amount is not None else calls.missing
    return f"Predicted: {predicted:,} calls of llama_decode. Measured: {found}."


# --- the wrong way --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GaugeReading:
    """What the tokens-per-second gauge said while no request had ended, and what the streams brought then.

    Args:
        scrapes: scrapes between the first token and the first end.
        values: the gauge in them, where it had a value.
        before: the gauge before the load.
        streamed_per_s: tokens that all streams together brought in that time.
        seconds: how long that was.
        streams: streams that brought any.
        after: the gauge in the first scrape after the load.
        emptied: after an answer had ended the gauge rose, and fell to 0 at a later scrape.
    """

    scrapes: int
    values: tuple[float, ...]
    before: float | None
    streamed_per_s: float
    seconds: float
    streams: int
    after: float | None
    emptied: bool


def gauge_in_mid_request(frames: RunFrames, arm: str = AT_ONCE) -> GaugeReading | None:
    """Read the gauge where it misleads: while requests decode and none has ended yet.

    Args:
        frames: the run.
        arm: the arm.

    Returns:
        None if there is no such scrape, or the build has no such gauge.
    """
    view = CounterArm(frames.data, arm)
    firsts = [times[0] for times in view.rows.times.values() if times]
    ends = [row["end_s"] for row in view.requests if row["end_s"] is not None]
    if view.window is None or not firsts or not ends or GAUGE not in view.window[0].values:
        return None
    start_s, stop_s = min(firsts), min(ends)
    inside = [s for s in view.during if s.sent_s >= start_s and s.received_s <= stop_s]
    if not inside:
        return None
    span_s = inside[-1].received_s - start_s
    return GaugeReading(
        scrapes=len(inside),
        values=tuple(value for s in inside if (value := s.values.get(GAUGE)) is not None),
        before=view.window[0].values[GAUGE],
        streamed_per_s=view.streamed_between(start_s, inside[-1].received_s) / span_s if span_s > 0 else 0.0,
        seconds=span_s,
        streams=sum(bool(times) and times[0] <= inside[-1].received_s for times in view.rows.times.values()),
        after=view.window[1].values.get(GAUGE),
        emptied=_emptied(view),
    )


def _emptied(view: CounterArm) -> bool:
    values = [s.values.get(GAUGE) or 0.0 for s in view.during]
    return any(one > 0 and other == 0 for one, other in pairwise(values))


def gauge_reading(frames: RunFrames) -> str:
    """Say what the gauge claimed in the middle of a request, in words that fit what was measured."""
    view = CounterArm(frames.data, AT_ONCE)
    reading = gauge_in_mid_request(frames)
    if reading is None:
        if view.window and GAUGE not in view.window[0].values:
            return f"{GAUGE} is {NOT_EXPOSED}."
        return no_metrics(view) or "No scrape fell between the first token and the first end: nothing to try it on."
    truth = (
        f"In {reading.seconds:.2f} s in which no answer had ended, {reading.streams} streams brought"
        f" {reading.streamed_per_s:,.0f} tokens/s together."
    )
    return f"{truth} {_gauge_said(reading)} {_rate_instead(view)}"


def _gauge_said(reading: GaugeReading) -> str:
    if not reading.values:
        return f"{GAUGE} had no value yet in any of {reading.scrapes} scrapes."
    low, high = min(reading.values), max(reading.values)
    zeros, still = (sum(value == other for value in reading.values) for other in (0, reading.before))
    if zeros >= MOSTLY * len(reading.values):
        said = f"{GAUGE} said 0 in {zeros} of {reading.scrapes} scrapes: it knew of no answer that had ended, and a"
        said += " running one doesn't count."
    elif still >= MOSTLY * len(reading.values):
        said = f"{GAUGE} stood still at {reading.before:,.0f} in {still} of {reading.scrapes} scrapes, as before the"
        said += " load: an average of answers that had ended by then; the running ones don't count."
    else:
        said = f"{GAUGE} said {low:,.0f} to {high:,.0f} in {reading.scrapes} scrapes."
    if reading.emptied:
        said += " Later it rose when answers had ended, and the next scrape, ours, had set it back to 0."
    return said


def _rate_instead(view: CounterArm) -> str:
    """Say what rate the counters' differences give, over the whole load."""
    if view.window is None:
        return ""
    before, after = view.window
    seconds = after.received_s - before.received_s
    by_counter = rate(view.grown("tokens_predicted_total"), seconds)
    by_streams = view.streamed_between(before.received_s, after.received_s) / seconds if seconds > 0 else 0.0
    if by_counter is None:
        return f"Over the {seconds:.1f} s between the scrapes before and after the load: {by_streams:,.0f} tokens/s."
    return (
        f"Differences of tokens_predicted_total over the {seconds:.1f} s between the scrapes before and after the load"
        f" give {by_counter:,.1f} tokens/s, the streams {by_streams:,.1f}."
    )


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
