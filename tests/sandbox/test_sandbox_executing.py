"""At most ``max_executing`` programs at one time, in order, and no deadline counts the wait."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from itertools import pairwise

import pytest

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox import ExecResult, FileRefusedError, SandboxSpec
from agentrl.sandbox.permits import FifoSemaphore
from tests.kit.waiting import DEADLINE_S

ONE = SandboxSpec("unsafe", max_executing=1)


async def run(code: str, **options: float) -> ExecResult:
    async with ONE.build() as sandbox:
        return await sandbox.run(code, **options)  # type: ignore[arg-type]


async def waits(task: asyncio.Task[ExecResult]) -> bool:
    done, _ = await asyncio.wait([task], timeout=0.2)
    return not done


async def test_a_deadline_does_not_count_the_wait() -> None:
    # eight of 0.4 s one after another: the last one waits 2.8 s, and has 2 s
    async with AsyncExitStack() as stack:
        crowd = [await stack.enter_async_context(ONE.build()) for _ in range(8)]
        await asyncio.gather(*(sandbox.start() for sandbox in crowd))
        results = await asyncio.gather(
            *(one.run("import time; time.sleep(0.4)", timeout_s=2.0) for one in crowd)
        )

    assert [result.status for result in results] == ["ok"] * 8
    assert max(result.queued_s for result in results) >= 2.8
    assert all(0.4 <= result.wall_s < 2.0 for result in results)


async def test_runs_of_one_sandbox_wait_for_each_other_and_say_so() -> None:
    async with SandboxSpec("unsafe").build() as sandbox:
        await sandbox.run("pass")
        results = await asyncio.gather(
            *(sandbox.run("import time; time.sleep(0.2)", timeout_s=60) for _ in range(3))
        )

    assert max(result.queued_s for result in results) >= 0.4


async def test_a_run_behind_another_of_its_own_sandbox_keeps_no_place_from_others() -> None:
    two = SandboxSpec("unsafe", max_executing=2)
    async with two.build() as busy, two.build() as other:
        await busy.run("pass")
        hanging = [
            asyncio.create_task(busy.run("while True: pass", timeout_s=600))
            for _ in range(2)
        ]
        await asyncio.wait(hanging, timeout=0.1)
        async with asyncio.timeout(DEADLINE_S):
            assert (await other.run("print(1)")).status == "ok"
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)


async def test_a_run_that_is_given_up_while_it_waits_costs_no_place() -> None:
    async with ONE.build() as sandbox, ONE.build() as other:
        await asyncio.gather(sandbox.start(), other.start())
        first = asyncio.create_task(sandbox.run("while True: pass", timeout_s=600))
        assert await waits(first)  # it has the one place before the other asks
        waiting = asyncio.create_task(other.run("print(1)"))
        assert await waits(waiting)
        for task in (waiting, first):
            task.cancel()
        await asyncio.gather(first, waiting, return_exceptions=True)

    async with asyncio.timeout(DEADLINE_S):
        assert (await run("print(1)")).status == "ok"


async def test_a_run_that_fails_gives_its_place_back() -> None:
    async with ONE.build() as sandbox:
        with pytest.raises(FileRefusedError):
            await sandbox.run("pass", files={"../out": b""})
        task = asyncio.create_task(sandbox.run("while True: pass", timeout_s=600))
        assert await waits(task)
        sandbox.kill_now()
        with pytest.raises(SandboxError):
            await task

    async with asyncio.timeout(DEADLINE_S):
        assert (await run("print(1)")).status == "ok"


async def test_the_bound_holds_over_event_loops() -> None:
    seen: list[ExecResult] = []
    code = "import time; print(time.monotonic()); time.sleep(0.2); print(time.monotonic())"
    threads = [
        threading.Thread(target=lambda: seen.append(asyncio.run(run(code))))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)

    assert [result.status for result in seen] == ["ok"] * 3
    times = [[float(word) for word in result.stdout.split()] for result in seen]
    assert all(end <= start for (_, end), (start, _) in pairwise(sorted(times)))


async def test_permits_go_to_those_who_wait_in_their_order() -> None:
    permits, order = FifoSemaphore(1), list[int]()
    await permits.take()

    async def wait(number: int) -> None:
        async with permits:
            order.append(number)

    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(wait(number))
        await asyncio.sleep(0)
        permits.give()
    assert order == [0, 1, 2, 3, 4]


async def test_a_permit_that_comes_while_its_waiter_is_cancelled_goes_on() -> None:
    permits = FifoSemaphore(1)
    await permits.take()
    waiter = asyncio.create_task(permits.take())
    await asyncio.sleep(0)
    permits.give()  # on its way to the waiter, which has not run since
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)

    assert waiter.cancelled()
    async with asyncio.timeout(DEADLINE_S):
        await permits.take()


@pytest.mark.parametrize("count", [0, -1, True, 1.5])
def test_a_bound_below_one_is_a_config_error(count: int) -> None:
    rule = "must be (an integer|at least 1)"
    with pytest.raises(
        ConfigError, match=rf"SandboxSpec\.max_executing {rule}, got {count}"
    ):
        SandboxSpec(max_executing=count)
