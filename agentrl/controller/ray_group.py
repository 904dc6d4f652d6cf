"""A group of workers in Ray actors, one process a rank."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from agentrl.controller.weights import WeightsReport
from agentrl.controller.worker import Worker, WorkerSpec
from agentrl.errors import AgentRLError, TrainingError
from agentrl.rollouts import GroupOutcome, GroupRequest, PauseMode
from agentrl.training import DistSpec
from agentrl.types import file_modules

__all__ = ["RayGroup", "start_ray"]

_POLL_S = 1.0
_KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**25),  # the largest that glibc takes
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_ARENA_MAX": "1",  # only the main arena grows and keeps as it is told
}
"""glibc gives large blocks back to the kernel, which clears every page of the next activation anew: a tenth of a small
model's update on a CPU. What the environment already says stands."""


def start_ray(num_ranks: int, address: str | None = None) -> bool:
    """Joins a cluster, or starts a private one on this machine.

    Returns:
        Whether this call started it, so that its caller ends it.
    """
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 lets the sandboxes' processes starve the trainer
    if address is not None:
        ray.init(address=address, logging_level=logging.ERROR)
    else:
        ray.init(num_cpus=num_ranks + 1, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=True)
    return True


class _Rank:
    """A Worker behind Ray: training calls run one at a time, episode calls beside them."""

    def __init__(self) -> None:
        self._worker: Worker | None = None

    def free_address(self) -> tuple[str, int]:
        """This host as the others reach it, and a port that is free there now."""
        host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        with socket.socket() as probe:
            probe.bind((host, 0))
            return host, int(probe.getsockname()[1])

    def start(self, dist: DistSpec, threads: int) -> None:
        self._worker = Worker(dist, threads)

    @property
    def _hosted(self) -> Worker:
        assert self._worker is not None, "start() comes first"
        return self._worker

    def describe(self) -> dict[str, Any]:
        return self._hosted.describe()

    def setup(self, spec: WorkerSpec) -> None:
        self._hosted.setup(spec)

    def call(self, role: str, method: str, args: Sequence[Any]) -> Any:
        return self._hosted.call(role, method, args)

    def publish(self, version: int, mode: PauseMode) -> WeightsReport | None:
        return self._hosted.publish(version, mode)

    @ray.method(concurrency_group="episodes")
    def submit(self, requests: Sequence[GroupRequest]) -> None:
        self._hosted.submit(requests)

    @ray.method(concurrency_group="episodes")
    def collect(self, timeout_s: float) -> list[GroupOutcome]:
        return self._hosted.collect(timeout_s)

    @ray.method(concurrency_group="episodes")
    def cancel(self, draws: Sequence[int], label: str) -> None:
        self._hosted.cancel(draws, label)

    def close(self) -> None:
        self._hosted.close()


_options: dict[str, Any] = {"max_restarts": 0, "concurrency_groups": {"episodes": 4}}
_RANK_ACTOR: Any = ray.remote(**_options)(_Rank)


class RayGroup:
    """Ranks over Ray; each also hosts a runner, and a draw's group goes to runner ``draw mod ranks``.

    Args:
        num_ranks: processes, one a device.
        threads: torch and OpenMP threads a rank.
        device: ``cpu`` or ``cuda``.
        call_timeout_s: deadline of one collective call.
    """

    def __init__(self, num_ranks: int, *, threads: int, device: str = "cpu", call_timeout_s: float = 1800.0) -> None:
        self._error: BaseException | None = None
        self._order = threading.Lock()  # calls of two threads reach every rank in one order, or collectives would cross
        self._timeout_s = call_timeout_s
        self._polls: dict[Any, int] = {}
        self._hosts: list[str] = []
        options = {"num_cpus": 1, "num_gpus": 1 if device.startswith("cuda") else 0}
        env_vars = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        if device == "cpu":
            env_vars |= {name: os.environ.get(name, value) for name, value in _KEEP_FREED_MEMORY.items()}
        self._ranks = [
            _RANK_ACTOR.options(**options, runtime_env={"env_vars": env_vars}).remote() for _ in range(num_ranks)
        ]
        host, port = self._get(self._ranks[0].free_address.remote(), "starting rank 0", rank=0)
        places = [DistSpec(rank, num_ranks, host, port, device) for rank in range(num_ranks)]
        refs = [rank.start.remote(place, threads) for rank, place in zip(self._ranks, places, strict=True)]
        self._gather(refs, "starting the workers")
        self._hosts = [place["host"] for place in self.describe()]

    @property
    def num_ranks(self) -> int:
        return len(self._ranks)

    def setup(self, spec: WorkerSpec) -> None:
        for module in file_modules():  # what a user's file defines travels by value
            ray.cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
        shared = ray.put(spec)
        self._polls.clear()
        self._gather([rank.setup.remote(shared) for rank in self._ranks], "setting up the stage")

    def call(self, role: str, method: str, args_by_rank: Sequence[Sequence[Any]]) -> list[Any]:
        ranks = self._ranks[: len(args_by_rank)]
        with self._order:
            refs = [rank.call.remote(role, method, args) for rank, args in zip(ranks, args_by_rank, strict=True)]
        return self._gather(refs, f"{role}.{method}")

    def publish(self, version: int, mode: PauseMode = "retract") -> list[WeightsReport | None]:
        with self._order:
            refs = [rank.publish.remote(version, mode) for rank in self._ranks]
        return self._gather(refs, f"publish({version})")

    def submit(self, requests: Sequence[GroupRequest]) -> None:
        for index, rank in enumerate(self._ranks):
            own = [request for request in requests if request.draw % len(self._ranks) == index]
            if own:
                self._get(rank.submit.remote(own), "submitting groups", rank=index)

    def collect(self, timeout_s: float) -> list[GroupOutcome]:
        for index, rank in enumerate(self._ranks):
            if index not in self._polls.values():
                self._polls[rank.collect.remote(timeout_s)] = index
        ready, _ = ray.wait(list(self._polls), num_returns=1, timeout=timeout_s)
        outcomes: list[GroupOutcome] = []
        for ref in ready:
            index = self._polls.pop(ref)
            outcomes += self._get(ref, "collecting groups", rank=index)
        return outcomes

    def cancel(self, draws: Sequence[int], *, label: str = "") -> None:
        for index, rank in enumerate(self._ranks):
            self._get(rank.cancel.remote(list(draws), label), "cancelling groups", rank=index)

    def describe(self) -> list[dict[str, Any]]:
        return self._gather([rank.describe.remote() for rank in self._ranks], "describing the workers")

    def close(self) -> None:
        try:
            if self._error is None:
                self._gather([rank.close.remote() for rank in self._ranks], "closing the workers")
        finally:
            for rank in self._ranks:
                ray.kill(rank)

    def _gather(self, refs: list[Any], what: str) -> list[Any]:
        """All answers by rank; the first failure is raised as soon as it is known."""
        if self._error is not None:
            raise TrainingError(f"the group is poisoned by an earlier error: {self._error}")
        end = time.monotonic() + self._timeout_s
        waiting = list(refs)
        answers: dict[int, Any] = {}
        while waiting:
            ready, waiting = ray.wait(waiting, num_returns=1, timeout=_POLL_S)
            for ref in ready:
                rank = refs.index(ref)
                answers[rank] = self._get(ref, what, rank=rank)
            if not ready and time.monotonic() > end:
                late = [refs.index(ref) for ref in waiting]
                self._error = TrainingError(f"{what}: ranks {late} did not answer within {self._timeout_s:.0f} s")
                raise self._error
        return [answers[rank] for rank in range(len(refs))]

    def _get(self, ref: Any, what: str, *, rank: int) -> Any:
        try:
            return ray.get(ref, timeout=self._timeout_s)
        except RayTaskError as error:
            self._error = (
                error.cause
                if isinstance(error.cause, AgentRLError)
                else self._failure(f"{what} failed: {error.cause!r}", rank, str(error))
            )
        except RayActorError as error:
            self._error = self._failure(f"{what}: the worker of rank {rank} died: {error}", rank)
        except GetTimeoutError:
            self._error = self._failure(f"{what}: rank {rank} did not answer within {self._timeout_s:.0f} s", rank)
        raise self._error

    def _failure(self, message: str, rank: int, traceback_text: str = "") -> TrainingError:
        host = self._hosts[rank] if self._hosts else None
        return TrainingError(message, rank=rank, host=host, traceback_text=traceback_text)
