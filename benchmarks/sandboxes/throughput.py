"""Throughput: executions a second and their latency, against ``docker exec`` and ``run``."""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from agentrl.sandbox import Sandbox
from agentrl.sandbox.forkserver.server import HostSettings
from benchmarks.figures import Figures
from benchmarks.sandboxes.machine import (
    connected,
    descendants,
    processor_s,
    spec_of,
    usable_backends,
)

__all__ = ["measure"]

CODE = "print(1)"
EXEC_SHARE, RUN_SHARE = 10, 40  # docker's own ways get that much fewer executions a block
OVER_EXEC = 10.0
OVER_RUN = 50.0
TARGET_PER_S = 150.0
TAIL = 5.0


@dataclass(slots=True)
class Side:
    """One way to execute, over all its blocks."""

    execute: Callable[[int], Awaitable[bool]]
    executions: int
    latencies: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    cpu_s: float = 0.0

    async def block(self, workers: int) -> None:
        """``executions`` by ``workers`` at once.

        Raises:
            RuntimeError: one did not print what it should.
        """
        left = iter(range(self.executions))

        async def work(worker: int) -> None:
            for _ in left:
                start = time.perf_counter()
                if not await self.execute(worker):
                    raise RuntimeError("an execution went wrong")
                self.latencies.append(time.perf_counter() - start)

        cpu_s = _own_processor_s()
        start = time.perf_counter()
        await asyncio.gather(*(work(worker) for worker in range(workers)))
        self.rates.append(self.executions / (time.perf_counter() - start))
        self.cpu_s += _own_processor_s() - cpu_s

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    def quantile(self, share: float) -> float:
        return sorted(self.latencies)[int(share * (len(self.latencies) - 1))]


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Blocks of every way in turn, so that noise of the machine meets all of them."""
    asyncio.run(_measure(figures, arguments))


async def _measure(figures: Figures, arguments: argparse.Namespace) -> None:
    capacity = HostSettings(confine=True).permits
    sides: dict[str, Side] = {}
    async with AsyncExitStack() as stack:
        for name in await asyncio.to_thread(usable_backends, figures, arguments.image):
            spec = spec_of(name, arguments.image)
            boxes = [await stack.enter_async_context(spec.build()) for _ in range(capacity)]
            await asyncio.gather(*(box.run(CODE) for box in boxes))
            sides[name] = Side(_in(boxes), arguments.executions)
        client = connected(figures)
        if client is not None:
            stack.callback(client.close)
            containers = [
                _container(client, arguments.image, stack) for _ in range(capacity)
            ]
            few = max(capacity, arguments.executions // EXEC_SHARE)
            fewer = max(2, arguments.executions // RUN_SHARE)
            sides["docker exec"] = Side(_by_exec(containers), few)
            sides["docker run"] = Side(_by_run(client, arguments.image), fewer)
        for _ in range(arguments.rounds):
            for side in sides.values():
                await side.block(capacity)
    _report(figures, sides, capacity)


def _report(figures: Figures, sides: dict[str, Side], capacity: int) -> None:
    figures.report("executions at one time", capacity, "")
    for name, side in sides.items():
        figures.report(f"{name}: print(1)", side.rate, "/s")
        figures.report(f"{name}: latency p50", 1e3 * side.quantile(0.5), "ms")
        figures.report(f"{name}: latency p95", 1e3 * side.quantile(0.95), "ms")
        if not name.startswith(
            "docker"
        ):  # an engine's processes are not ours, and are not seen from here
            cpu_ms = 1e3 * side.cpu_s / len(side.latencies)
            figures.report(
                f"{name}: processor time a call, its caller's included", cpu_ms, "ms"
            )
    for name in [name for name in sides if not name.startswith("docker ")]:
        side = sides[name]
        figures.at_least(f"{name}: executions", side.rate, "/s", TARGET_PER_S)
        figures.at_most(
            f"{name}: p95 over p50", side.quantile(0.95) / side.quantile(0.5), "x", TAIL
        )
        for peer, target in (("docker exec", OVER_EXEC), ("docker run", OVER_RUN)):
            if peer in sides:
                figures.at_least(
                    f"{name} over {peer}", side.rate / sides[peer].rate, "x", target
                )


def _own_processor_s() -> float:
    return time.process_time() + sum(map(processor_s, descendants(os.getpid())))


def _in(boxes: list[Sandbox]) -> Callable[[int], Awaitable[bool]]:
    async def execute(worker: int) -> bool:
        return (await boxes[worker].run(CODE)).stdout == b"1\n"

    return execute


def _container(client: Any, image: str, stack: AsyncExitStack) -> Any:
    container = client.containers.run(
        image, ["sleep", "3600"], detach=True, network_mode="none", init=False
    )
    stack.callback(container.remove, force=True)
    return container


def _by_exec(containers: list[Any]) -> Callable[[int], Awaitable[bool]]:
    async def execute(worker: int) -> bool:
        done = await asyncio.to_thread(containers[worker].exec_run, ["python3", "-c", CODE])
        return bool(done.output == b"1\n")

    return execute


def _by_run(client: Any, image: str) -> Callable[[int], Awaitable[bool]]:
    async def execute(_: int) -> bool:
        run = client.containers.run
        said = await asyncio.to_thread(
            run, image, ["python3", "-c", CODE], network_mode="none", remove=True
        )
        return bool(said == b"1\n")

    return execute
