"""A thread with an event loop ends by nothing but its owner, and leaves nobody waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from agentrl.types.loop_thread import LoopThread
from tests.kit.waiting import DEADLINE_S

Made = tuple[LoopThread, SimpleQueue[BaseException]]


@pytest.fixture
def made() -> Iterator[Made]:
    told: SimpleQueue[BaseException] = SimpleQueue()
    thread = LoopThread("tested", told.put)
    yield thread, told
    thread.stop(DEADLINE_S)
    assert not thread.thread.is_alive()


async def answered() -> str:
    await asyncio.sleep(0)
    return "answered"


def exits() -> None:
    raise SystemExit(3)


def interrupts() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("ends", [exits, interrupts])
def test_an_exit_is_told_and_the_loop_goes_on(made: Made, ends: Callable[[], None]) -> None:
    thread, told = made
    for _ in range(2):
        thread.call(ends)
        assert isinstance(told.get(timeout=DEADLINE_S), SystemExit | KeyboardInterrupt)
        assert thread.submit(answered()).result(DEADLINE_S) == "answered"


def test_a_stop_of_somebody_else_is_told_and_the_loop_goes_on(made: Made) -> None:
    thread, told = made
    thread.call(thread.loop.stop)
    assert "somebody called stop()" in str(told.get(timeout=DEADLINE_S))
    assert thread.submit(answered()).result(DEADLINE_S) == "answered"


def test_who_awaits_a_task_that_exits_gets_the_exit(made: Made) -> None:
    thread, _ = made

    async def leaves() -> None:
        raise SystemExit(4)

    with pytest.raises(SystemExit, match="4"):
        thread.submit(leaves()).result(DEADLINE_S)


def test_where_the_loop_breaks_what_waits_for_it_fails_with_the_cause(made: Made) -> None:
    thread, told = made

    async def waits() -> None:
        await asyncio.Event().wait()

    waiting = thread.submit(waits())
    loop: Any = thread.loop
    thread.call(lambda: loop._ready.append(None))  # nothing that it could run
    with pytest.raises(AttributeError) as caught:
        waiting.result(DEADLINE_S)
    assert told.get(timeout=DEADLINE_S) is caught.value


def test_by_default_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    thread = LoopThread("tested")
    thread.call(exits)
    assert thread.submit(answered()).result(DEADLINE_S) == "answered"
    thread.stop(DEADLINE_S)
    (record,) = caplog.records
    assert (record.levelname, record.__dict__["event"]) == ("ERROR", "loop_interrupted")
    assert "the thread tested met SystemExit(3)" in record.getMessage()
