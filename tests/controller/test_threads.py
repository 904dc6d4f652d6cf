"""Awake clock: what a process slept through counts for no deadline."""

from __future__ import annotations

from agentrl.controller.threads import AwakeClock


def test_a_process_that_stood_still_waited_for_nobody() -> None:
    now = [100.0]
    awake = AwakeClock(lambda: now[0])
    start = awake()
    for _ in range(20):
        now[0] += 0.5
        awake()
    assert awake() - start == 10.0
    now[0] += 5000.0
    assert awake() - start == 10.0
    now[0] += 1.0
    assert awake() - start == 11.0
