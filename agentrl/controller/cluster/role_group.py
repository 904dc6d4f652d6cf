"""A group of workers as the driver sees it: who is called with what, and how answers come together."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from agentrl.controller.cluster.rollout_pool import Incident
from agentrl.controller.cluster.worker import Worker, WorkerSpec
from agentrl.engines import PauseMode
from agentrl.errors import TrainingError
from agentrl.rollouts import GroupOutcome, GroupRequest, GroupState
from agentrl.training import DistSpec
from agentrl.weight_sync import WeightsReport

__all__ = ["LocalGroup", "WorkerGroup"]


class WorkerGroup(Protocol):
    """Collective calls run first in, first out, from one caller.

    The first rank's exception is raised at once; the group is then poisoned, and every later call raises.
    """

    @property
    def num_ranks(self) -> int: ...

    def setup(self, spec: WorkerSpec) -> None:
        """Builds a stage's roles, engines and runners on every rank."""
        ...

    def call(self, role: str, method: str, args_by_rank: Sequence[Sequence[Any]]) -> list[Any]:
        """Calls a role's method on ranks 0 .. len(args_by_rank) - 1, each with its own arguments."""
        ...

    def publish(self, version: int, mode: PauseMode = "retract") -> list[WeightsReport | None]:
        """Every rank's engine, paused by ``mode`` meanwhile, serves the actor's weights as ``version`` when this
        returns."""
        ...

    def submit(self, requests: Sequence[GroupRequest]) -> None: ...

    def collect(self, timeout_s: float) -> list[GroupOutcome]: ...

    def cancel(self, group_indices: Sequence[int], *, label: str = "") -> None: ...

    def in_flight(self) -> list[GroupState]: ...

    def take_incidents(self) -> list[Incident]:
        """Hosts and servers of episodes that died since the last call, and that the group goes on after."""
        ...

    def describe(self) -> list[dict[str, Any]]:
        """Rank, host and process of each worker."""
        ...

    def close(self) -> None:
        """Ends every worker and what it started."""
        ...


class LocalGroup:
    """One worker in the driver's own process: no Ray, breakpoints work, the same split and collect.

    Args:
        threads: torch threads of this process.
        device: where the roles compute.
    """

    def __init__(self, *, threads: int, device: str = "cpu") -> None:
        self._worker = Worker(DistSpec(device=device), threads)
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    @property
    def num_ranks(self) -> int:
        return 1

    def setup(self, spec: WorkerSpec) -> None:
        with self._sound():
            self._worker.setup(spec)

    def call(self, role: str, method: str, args_by_rank: Sequence[Sequence[Any]]) -> list[Any]:
        with self._sound():
            return [self._worker.call(role, method, args) for args in args_by_rank]

    def publish(self, version: int, mode: PauseMode = "retract") -> list[WeightsReport | None]:
        with self._sound():
            return [self._worker.publish(version, mode)]

    def submit(self, requests: Sequence[GroupRequest]) -> None:
        self._worker.submit(requests)

    def collect(self, timeout_s: float) -> list[GroupOutcome]:
        return self._worker.collect(timeout_s)

    def cancel(self, group_indices: Sequence[int], *, label: str = "") -> None:
        self._worker.cancel(group_indices, label)

    def in_flight(self) -> list[GroupState]:
        return self._worker.in_flight()

    def take_incidents(self) -> list[Incident]:
        return [*self._worker.take_notices()]

    def describe(self) -> list[dict[str, Any]]:
        return [self._worker.describe()]

    def close(self) -> None:
        self._worker.close()

    @contextmanager
    def _sound(self) -> Iterator[None]:
        """One collective call at a time; one that raises poisons the group."""
        with self._lock:
            if self._error is not None:
                raise TrainingError(
                    f"the group is poisoned by an earlier error: {self._error}", rank=0
                )
            try:
                yield
            except BaseException as error:
                self._error = error
                raise
