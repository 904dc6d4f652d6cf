"""The wall between agentrl and a user's Python: what leaves as a boundary's error, and what
passes.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from agentrl.errors import ConfigError, EnvError, RunInterruptedError
from agentrl.types import load_object
from agentrl.types.user_code.place import described
from agentrl.types.user_code.wall import EXIT_CODE, DeadlineError, call_user, wall
from tests.rollouts.user_code import RAISED


def failed(error: BaseException) -> EnvError:
    return EnvError(f"it raised {described(error)}")


def raise_one(name: str) -> None:
    raise RAISED[name]()


async def raise_later(name: str) -> None:
    await asyncio.sleep(0)
    raise RAISED[name]()


async def in_thread(work: Callable[[], object]) -> object:
    return await asyncio.to_thread(work)


@pytest.mark.parametrize("name", RAISED)
def test_what_a_line_raises_becomes_the_boundarys_error(name: str) -> None:
    told = r"it raised .*test_wall\.py:\d+\)$"
    with pytest.raises(EnvError, match=told) as caught, wall(failed):
        raise_one(name)
    is_exit = not isinstance(RAISED[name](), Exception)
    assert caught.value.exit_code == (EXIT_CODE if is_exit else EnvError.exit_code)


@pytest.mark.parametrize("name", RAISED)
async def test_a_coroutine_is_no_way_around_it(name: str) -> None:
    with pytest.raises(EnvError, match=r"test_wall\.py:\d+\)$"):
        await call_user(partial(raise_later, name), failed=failed, in_thread=in_thread)


def test_an_error_that_knows_its_boundary_passes() -> None:
    with pytest.raises(ConfigError), wall(failed):
        raise ConfigError("a setting")
    with pytest.raises(EnvError, match="ConfigError: a setting"), wall(failed, passes=()):
        raise ConfigError("a setting")


def test_a_signal_that_ends_the_run_passes() -> None:
    with pytest.raises(RunInterruptedError), wall(failed, passes=()):
        raise RunInterruptedError("SIGTERM")


def test_ctrl_c_passes() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), wall(failed):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


async def test_a_cancellation_that_was_asked_for_passes() -> None:
    begun = asyncio.Event()

    async def waits() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(call_user(waits, failed=failed, in_thread=in_thread))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_in_a_task_that_was_cancelled_another_ones_cancellation_is_a_failure() -> (
    None
):
    other = asyncio.get_running_loop().create_future()
    other.cancel()
    ended: list[BaseException] = []

    async def closes() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            try:
                await call_user(lambda: other, failed=failed, in_thread=in_thread)
            except EnvError as error:
                ended.append(error)

    task = asyncio.create_task(closes())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert len(ended) == 1
    assert "CancelledError" in str(ended[0])


def test_the_end_of_a_coroutine_that_nobody_awaits_any_more_passes() -> None:
    async def waits() -> None:
        with wall(failed):
            await asyncio.sleep(0)

    left = waits()
    left.send(None)
    left.close()  # raises nothing, which an EnvError in there would


async def test_a_deadline_is_told_from_a_timeout_of_the_users() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    async def own() -> None:
        raise TimeoutError("my own")

    call = partial(call_user, failed=lambda error: error, in_thread=in_thread)
    with pytest.raises(DeadlineError, match=r"^took longer than 0\.01 s$"):
        await call(never, deadline_s=0.01)
    with pytest.raises(TimeoutError, match="my own") as caught:
        await call(own, deadline_s=60.0)
    assert not isinstance(caught.value, DeadlineError)


async def test_plain_functions_run_in_a_thread_and_what_they_await_on_the_loop() -> None:
    ran: list[threading.Thread] = []

    async def awaited() -> str:
        ran.append(threading.current_thread())
        return "given"

    def plain() -> object:
        ran.append(threading.current_thread())
        return awaited()

    assert await call_user(plain, failed=failed, in_thread=in_thread) == "given"
    assert ran[0] is not threading.current_thread()
    assert ran[1] is threading.current_thread()


def test_a_file_that_exits_when_imported_is_an_error_of_it(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import sys\nsys.exit(0)\n")
    told = r"own\.py raised when imported: SystemExit: 0 \(.*own\.py:2\)"
    for _ in range(2):  # it is not kept half-made
        with pytest.raises(ConfigError, match=told) as caught:
            load_object("own.py:f", tmp_path)
        assert caught.value.exit_code == EXIT_CODE
