"""Bounded threads: what runs, what waits, what is abandoned."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from functools import partial

import pytest

from agentrl.tools import BoundedThreads, DeadlineError
from agentrl.types.clock import WaitClock, counted_by
from tests.kit.waiting import DEADLINE_S, until_async

WHO = contextvars.ContextVar("WHO", default="nobody")


async def test_no_more_than_the_bound_run_at_once() -> None:
    threads, lock, release = BoundedThreads(2, "test"), threading.Lock(), threading.Event()
    inside, most, two_inside = 0, 0, threading.Event()

    def work() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
            if inside == 2:
                two_inside.set()
        release.wait(DEADLINE_S)
        with lock:
            inside -= 1

    tasks = [asyncio.create_task(threads.run(work)) for _ in range(6)]
    await asyncio.to_thread(two_inside.wait, 100)
    release.set()
    await asyncio.gather(*tasks)

    assert most == 2


async def test_no_call_waits_behind_another_while_threads_are_free() -> None:
    threads = BoundedThreads(2, "pair")
    for _ in range(500):
        told = threading.Event()
        heard, _ = await asyncio.gather(
            threads.run(partial(told.wait, DEADLINE_S)), threads.run(told.set)
        )
        assert heard


async def test_an_abandoned_call_gives_its_place_away() -> None:
    threads, release = BoundedThreads(1, "test"), threading.Event()
    with pytest.raises(DeadlineError):
        await threads.run(lambda: release.wait(DEADLINE_S), deadline_s=0.02)

    assert await threads.run(lambda: "went on") == "went on"
    assert threads.num_abandoned == 1
    release.set()
    await until_async(lambda: threads.num_abandoned == 0)


async def test_waiting_for_a_thread_does_not_spend_the_deadline() -> None:
    threads = BoundedThreads(1, "test")
    entered = threading.Event()
    release = threading.Event()

    def hold() -> None:
        entered.set()
        release.wait(DEADLINE_S)

    first = asyncio.create_task(threads.run(hold))
    await asyncio.to_thread(entered.wait, 100)
    second = asyncio.create_task(threads.run(lambda: "in time", deadline_s=30.0))
    done, _ = await asyncio.wait({second}, timeout=0.1)
    release.set()

    assert not done
    assert await second == "in time"
    await first


async def test_clocks_of_the_caller_stop_while_it_waits_for_a_thread() -> None:
    threads = BoundedThreads(1, "test")
    entered = threading.Event()
    release = threading.Event()

    def hold() -> None:
        entered.set()
        release.wait(DEADLINE_S)

    first, waits = WaitClock(), WaitClock()
    with counted_by(first):
        holder = asyncio.create_task(threads.run(hold))
    await asyncio.to_thread(entered.wait, DEADLINE_S)
    with counted_by(waits):
        second = asyncio.create_task(threads.run(lambda: "done"))
    try:
        await until_async(lambda: waits.first_at is not None or second.done())
        assert waits.first_at is not None
    finally:
        release.set()
    assert await second == "done"
    await holder
    assert waits.wait_s > 0
    assert first.first_at is None


async def test_a_call_cancelled_while_it_waits_never_runs() -> None:
    threads = BoundedThreads(1, "test")
    entered = threading.Event()
    release = threading.Event()
    ran = []

    def hold() -> None:
        entered.set()
        release.wait(DEADLINE_S)

    first = asyncio.create_task(threads.run(hold))
    await asyncio.to_thread(entered.wait, 100)
    second = asyncio.create_task(threads.run(lambda: ran.append(1)))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    release.set()
    await first
    await threads.run(lambda: None)

    assert ran == []
    assert threads.num_abandoned == 0


async def test_an_error_comes_back() -> None:
    def work() -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        await BoundedThreads(1, "test").run(work)


async def test_context_variables_come_along() -> None:
    WHO.set("me")

    assert await BoundedThreads(1, "test").run(WHO.get) == "me"


def test_one_pool_serves_several_loops() -> None:
    threads = BoundedThreads(2, "test")

    async def ask(word: str) -> str:
        return await threads.run(lambda: word)

    assert [asyncio.run(ask(word)) for word in "ab"] == ["a", "b"]


def test_a_bound_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        BoundedThreads(0, "test")


async def test_calls_that_wait_start_when_there_are_more_threads() -> None:
    threads, together = BoundedThreads(1, "test"), threading.Barrier(3)
    tasks = [
        asyncio.create_task(threads.run(lambda: together.wait(DEADLINE_S)))
        for _ in range(3)
    ]
    await asyncio.sleep(0)
    threads.resize(3)
    assert sorted(await asyncio.gather(*tasks)) == [0, 1, 2]


async def test_no_more_than_a_smaller_bound_run_at_once_from_then_on() -> None:
    threads, lock, inside, most = BoundedThreads(4, "test"), threading.Lock(), 0, 0
    together = threading.Barrier(4)
    await asyncio.gather(
        *(threads.run(lambda: together.wait(DEADLINE_S)) for _ in range(4))
    )

    def work() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        with lock:
            inside -= 1

    threads.resize(2)
    await asyncio.gather(*(threads.run(work) for _ in range(50)))
    assert most <= 2


def test_a_bound_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="max_threads must be at least 1, got 0"):
        BoundedThreads(2, "test").resize(0)
