"""More requests than slots: the queue is seen by /metrics, apart from prefill, and HTTP threads are no slots."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import labkit as lab
from tests.live.lab import quiet

pytestmark = pytest.mark.live


def crowded(tmp_path: Path, *, tokens: int = 300, **settings: Any) -> lab.RunFrames:
    """Send 6 requests at once to 2 slots."""
    run = lab.open_run("x", lab.LateArrival(), outputs=str(tmp_path))
    requests = [lab.RequestPlan(label="ABCDEF"[i], prompt=f"[{i}] go", max_tokens=tokens, seed=i + 1) for i in range(6)]
    plan = lab.LoadPlan(requests=tuple(requests), stall_timeout_s=60)

    async def scene() -> None:
        server_settings = lab.ServerSettings(model="toy", ctx_size=8192, **settings)
        async with lab.open_server(server_settings, log_path=run.log_path("a"), lock_timeout_s=60, say=quiet) as server:
            sampling = lab.SampleSettings(poll_hz=20, metrics_hz=20)
            await lab.measure_arm(server, plan, run=run, arm="treatment", sampling=sampling, say=quiet)

    try:
        asyncio.run(scene())
    finally:
        run.close()
    return lab.RunFrames(lab.read_run(run.folder))


def peak(frames: lab.RunFrames, name: str) -> float:
    return float(frames.metrics[frames.metrics["name"] == name]["value"].max())


def test_six_requests_on_two_slots_leave_four_waiting_and_their_wait_is_not_prefill(tmp_path: Path) -> None:
    frames = crowded(tmp_path)
    assert set(frames.requests["outcome"]) == {"completed"}
    assert frames.slots.groupby("poll")["busy"].sum().max() == 2
    assert (peak(frames, "requests_processing"), peak(frames, "requests_deferred")) == (2, 4)
    waits = frames.requests.sort_values("server_wait_s")["server_wait_s"].tolist()
    shortest = frames.requests["decode_s"].min()
    assert max(waits[:2]) < shortest / 2
    assert min(waits[2:]) > shortest / 2  # they waited for somebody else's answer
    assert frames.requests["prefill_s"].max() < shortest / 2
    reading = lab.readings.concurrency_reading(frames, "treatment")
    assert "6 requests sent, at most 6 in flight at once, at most 2 slots busy" in reading
    assert "/metrics counted at most 4 waiting without a slot." in reading
    assert "HTTP" not in reading


def test_few_http_threads_are_suspected_and_not_the_slots(tmp_path: Path) -> None:
    frames = crowded(tmp_path, tokens=60, threads_http=2)
    reading = lab.readings.concurrency_reading(frames, "treatment")
    assert "the server was given 2, and 6 requests were open: suspect the HTTP layer" in reading
    assert set(frames.requests["outcome"]) <= {"completed", "stalled"}
