"""A deadline of the policy's does not count what the machine makes it wait for."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time

import pytest

from agentrl.rollouts.deadlines import Deadline, Deadlines, LimitSpentError
from agentrl.sandbox import SandboxPool, SandboxSpec
from agentrl.sandbox.permits import FifoSemaphore
from agentrl.types.clock import PausableClock, PausableTimeout, clock_paused, counted_by

SHORT_S, LONG_S = 1.0, 2.5  # the wait is far longer than the deadline


async def give_later(permits: FifoSemaphore) -> None:
    asyncio.get_running_loop().call_later(LONG_S, permits.give)


async def test_a_wait_for_a_permit_is_not_counted() -> None:
    permits = FifoSemaphore(1)
    await permits.take()
    async with Deadline(SHORT_S, "turn_timeout"):
        await give_later(permits)
        await permits.take()


async def test_what_is_left_counts_on_after_the_wait() -> None:
    permits = FifoSemaphore(1)
    await permits.take()

    async def wait_then_dawdle() -> None:
        async with Deadline(SHORT_S, "turn_timeout"):
            await give_later(permits)
            await permits.take()
            await asyncio.Event().wait()

    with pytest.raises(LimitSpentError, match="turn_timeout"):
        await wait_then_dawdle()


async def test_every_deadline_around_the_wait_stands_still() -> None:
    permits = FifoSemaphore(1)
    await permits.take()
    async with Deadline(SHORT_S, "episode_timeout"), Deadline(SHORT_S, "turn_timeout"):
        await give_later(permits)
        await permits.take()


async def test_a_call_that_waits_in_a_task_of_the_turn_stops_its_clock() -> None:
    permits = FifoSemaphore(1)
    await permits.take()
    async with Deadline(SHORT_S, "turn_timeout"), asyncio.TaskGroup() as calls:
        await give_later(permits)
        # one after the other: the clock goes on when the last has waited
        for _ in range(2):
            calls.create_task(permits.take()).add_done_callback(lambda _: permits.give())


async def test_a_wait_on_another_thread_stops_the_clock_too() -> None:
    release = threading.Event()

    async def waits() -> None:
        with clock_paused():
            await asyncio.to_thread(release.wait, 60.0)

    def on_a_loop_of_its_own() -> None:
        asyncio.run(waits())

    async with Deadline(SHORT_S, "turn_timeout"):
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(on_a_loop_of_its_own,))
        thread.start()
        # the loop hears of the stop within the deadline, or this ends it
        await asyncio.sleep(LONG_S)
        release.set()
        while thread.is_alive():
            await asyncio.sleep(0.01)
    thread.join()


async def test_what_waits_on_after_the_deadlines_end_changes_nothing() -> None:
    permits = FifoSemaphore(1)
    await permits.take()
    async with Deadline(SHORT_S, "turn_timeout"):
        left_behind = asyncio.ensure_future(permits.take())
        await asyncio.sleep(0)
    permits.give()
    await left_behind


async def test_a_deadline_counts_its_own_time_without_a_wait() -> None:
    permits = FifoSemaphore(1)
    with pytest.raises(LimitSpentError):
        async with Deadline(SHORT_S, "turn_timeout"), permits:  # free: nobody waited
            await asyncio.Event().wait()


async def test_a_clock_counts_only_within() -> None:
    class Counting:
        def __init__(self) -> None:
            self.calls: list[str] = []

        def stop(self) -> None:
            self.calls.append("stop")

        def go_on(self) -> None:
            self.calls.append("go_on")

    clock = Counting()
    with counted_by(clock), clock_paused():
        pass
    with clock_paused():
        pass
    assert clock.calls == ["stop", "go_on"]


async def test_an_episode_that_waits_for_anothers_sandbox_keeps_its_turn() -> None:
    pool = SandboxPool(SandboxSpec(backend="unsafe"), max_running=1)
    try:
        first = await pool.acquire()

        async def other() -> None:
            async with Deadline(SHORT_S, "turn_timeout"):
                await pool.release(await pool.acquire())

        waiting = asyncio.ensure_future(other())
        await asyncio.sleep(LONG_S)
        assert not waiting.done()
        await pool.release(first)
        await waiting
    finally:
        await pool.close()


async def test_no_deadline_of_a_host_counts_while_its_engine_is_paused() -> None:
    deadlines = Deadlines()
    with deadlines.of_this_task():
        async with Deadline(SHORT_S, "episode_timeout"):
            with deadlines.paused():
                # also one that begins meanwhile
                async with Deadline(SHORT_S, "turn_timeout"):
                    await asyncio.sleep(LONG_S)


async def test_deadlines_go_on_after_the_pause() -> None:
    deadlines = Deadlines()

    async def dawdle() -> None:
        with deadlines.of_this_task():
            async with Deadline(SHORT_S, "turn_timeout"):
                await asyncio.to_thread(pause_for_a_moment, deadlines)
                await asyncio.Event().wait()

    with pytest.raises(LimitSpentError, match="turn_timeout"):
        await dawdle()


def pause_for_a_moment(deadlines: Deadlines) -> None:
    with deadlines.paused():
        pass


async def test_another_hosts_deadlines_go_on() -> None:
    async def dawdle() -> None:
        async with Deadline(0.05, "turn_timeout"):
            await asyncio.Event().wait()

    with Deadlines().paused(), pytest.raises(LimitSpentError, match="turn_timeout"):
        await dawdle()


async def test_a_timeout_without_a_limit_outlives_a_pause_of_its_clock() -> None:
    clock = PausableClock()
    async with PausableTimeout(None, clock) as timeout:
        with clock.paused():
            await asyncio.sleep(0)
        timeout.stop()
        timeout.go_on()
        await asyncio.sleep(0.05)
    assert not timeout.expired()


def test_a_clock_counts_what_lies_between_its_pauses() -> None:
    clock = PausableClock()
    start = clock.now()
    with clock.paused(), clock.paused():  # pauses nest
        stopped = clock.now()
        time.sleep(0.05)
        assert clock.now() == stopped
    assert 0 <= clock.now() - start < 0.05
