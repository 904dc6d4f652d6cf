from __future__ import annotations

import asyncio

import pytest

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox import SandboxPool, SandboxSpec


async def test_no_more_than_max_running_are_lent_at_one_time(spec: SandboxSpec) -> None:
    pool = SandboxPool(spec, max_running=2)
    lent = most = 0

    async def episode() -> None:
        nonlocal lent, most
        async with pool.session() as sandbox:
            lent += 1
            most = max(most, lent)
            await sandbox.run("import time; time.sleep(0.02)")
            lent -= 1

    await asyncio.gather(*(episode() for _ in range(8)))
    assert most == 2


async def test_nothing_of_one_user_reaches_the_next(spec: SandboxSpec) -> None:
    pool = SandboxPool(spec, max_running=1)
    async with pool.session() as sandbox:
        await sandbox.write_file("left", b"x")
    async with pool.session() as sandbox:
        assert await sandbox.list_files() == {}


async def test_a_waiter_that_gives_up_does_not_cost_a_permit(spec: SandboxSpec) -> None:
    pool = SandboxPool(spec, max_running=1)
    first = await pool.acquire()
    waiter = asyncio.create_task(pool.acquire())
    await asyncio.wait([waiter], timeout=0.05)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    await pool.release(first)
    async with asyncio.timeout(30):
        await pool.release(await pool.acquire())


async def test_a_second_release_gives_no_second_permit(spec: SandboxSpec) -> None:
    pool = SandboxPool(spec, max_running=1)
    sandbox = await pool.acquire()
    await pool.release(sandbox)
    await pool.release(sandbox)
    await pool.acquire()
    waiter = asyncio.create_task(pool.acquire())
    done, _ = await asyncio.wait([waiter], timeout=0.1)
    assert not done
    await pool.close()
    with pytest.raises(SandboxError, match="closed"):
        await waiter


async def test_closing_ends_what_is_lent(spec: SandboxSpec) -> None:
    pool = SandboxPool(spec, max_running=1)
    sandbox = await pool.acquire()
    await sandbox.run("pass")
    await pool.close()
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.run("print(1)")


def test_a_pool_of_none_is_a_config_error(spec: SandboxSpec) -> None:
    with pytest.raises(ConfigError, match=r"sandbox\.max_running must be at least 1, got 0"):
        SandboxPool(spec, max_running=0)
