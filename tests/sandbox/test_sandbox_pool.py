from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox import BackendReport, SandboxPool, SandboxSpec
from tests.kit.waiting import DEADLINE_S, until_async


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
    async with asyncio.timeout(DEADLINE_S):
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
    with pytest.raises(
        ConfigError, match=r"SandboxSpec\.max_running must be at least 1, got 0"
    ):
        SandboxPool(spec, max_running=0)


@pytest.mark.parametrize(
    ("full", "message"),
    [
        (
            SandboxSpec("docker"),
            r"SandboxSpec\.max_running=129 .* more than DockerSettings\.max_sandboxes=128; .* "
            r"raise",
        ),
        (
            SandboxSpec("unsafe"),
            r"SandboxSpec\.max_running=1001 .* more than the 1000 that one process can hold",
        ),
    ],
)
def test_a_pool_of_more_than_a_host_holds_is_a_config_error(
    full: SandboxSpec, message: str
) -> None:
    most = full.docker.max_sandboxes if full.backend == "docker" else 1000
    SandboxPool(full, max_running=most)
    with pytest.raises(ConfigError, match=message):
        SandboxPool(full, max_running=most + 1)


async def test_no_more_than_max_starting_start_at_one_time(spec: SandboxSpec) -> None:
    pool = SandboxPool(spec.replace(max_starting=1), max_running=8)
    most = 0

    async def episode() -> None:
        async with pool.session():
            pass

    tasks = [asyncio.create_task(episode()) for _ in range(8)]
    while not all(task.done() for task in tasks):
        most = max(most, pool.counts().starting)
        await asyncio.sleep(0)
    assert most == 1
    assert pool.counts().started == 8


async def test_the_counts_say_who_runs_and_who_waits(spec: SandboxSpec) -> None:
    pool = SandboxPool(spec, max_running=2)
    held = [await pool.acquire() for _ in range(2)]
    waiting = [asyncio.create_task(pool.acquire()) for _ in range(3)]
    await until_async(lambda: pool.counts().waiting == 3)
    counts = pool.counts()
    assert (counts.running, counts.starting, counts.waiting, counts.started) == (2, 0, 3, 2)
    for sandbox in held:
        await pool.release(sandbox)
    await until_async(lambda: pool.counts().running == 2)
    await pool.close()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_sandbox_that_does_not_start_in_time_is_a_retryable_failure_that_costs_no_place(
    landlock: BackendReport,
) -> None:
    pool = SandboxPool(SandboxSpec("landlock", start_timeout_s=1e-6), max_running=1)
    for _ in range(2):
        with pytest.raises(SandboxError) as failure:
            async with asyncio.timeout(DEADLINE_S):
                await pool.acquire()
        assert failure.value.retryable


async def test_a_sandbox_that_is_kept_too_long_is_ended_and_its_place_goes_on(
    spec: SandboxSpec, caplog: pytest.LogCaptureFixture
) -> None:
    pool = SandboxPool(spec.replace(max_lifetime_s=0.2), max_running=1)
    forgotten = await pool.acquire()
    async with asyncio.timeout(DEADLINE_S):
        await pool.release(await pool.acquire())
    assert pool.counts().overdue == 1
    assert "sandbox_overdue" in [vars(record).get("event") for record in caplog.records]
    with pytest.raises(SandboxError):
        await forgotten.run("print(1)")
    await pool.release(forgotten)


async def test_a_sandbox_that_is_given_back_in_time_is_not_overdue(
    spec: SandboxSpec,
) -> None:
    pool = SandboxPool(spec.replace(max_lifetime_s=600.0), max_running=1)
    started = time.monotonic()
    async with pool.session() as sandbox:
        await sandbox.run("pass")
    assert pool.counts().overdue == 0
    assert time.monotonic() - started < 600


async def test_a_worn_host_is_replaced_and_its_sandboxes_live_on(
    landlock: BackendReport,
) -> None:
    spec = SandboxSpec("landlock", recycle_after=3)
    async with spec.build() as old:
        await old.start()
        first = vars(old)["_slot"].server
        for _ in range(4):
            assert (await old.run("print(1)")).status == "ok"
        async with spec.build() as new:
            assert (await new.run("print(2)")).stdout == b"2\n"
            assert vars(new)["_slot"].server is not first
        assert (await old.run("print(3)")).stdout == b"3\n"
        assert not first.ended


@pytest.mark.slow
async def test_two_images_are_lent_under_one_bound() -> None:
    build = f"{Path(__file__).with_name('own_images.py')}:build"
    pool = SandboxPool(SandboxSpec(build, require="none", image="plain"), max_running=2)
    one, other = await pool.acquire(), await pool.acquire("other")
    assert [sandbox.notes for sandbox in (one, other)] == ["plain", "other"]
    waiter = asyncio.create_task(pool.acquire("third"))
    await asyncio.wait([waiter], timeout=0.05)
    assert (pool.counts().running, pool.counts().waiting) == (2, 1)
    await pool.release(one)
    assert (await waiter).notes == "third"
    await pool.close()


async def test_an_image_needs_a_backend_with_images() -> None:
    pool = SandboxPool(SandboxSpec("unsafe"), max_running=1)
    with pytest.raises(ConfigError, match="needs a backend with images"):
        await pool.acquire("python:3.12")
    await pool.release(await pool.acquire())  # it cost no permit
