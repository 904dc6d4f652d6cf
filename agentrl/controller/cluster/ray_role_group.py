"""A group of workers in Ray actors, one process a rank."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Sequence
from typing import Any

import ray

from agentrl.controller.cluster.ray_runtime import ActorCalls, Collected, RayRunners, shared
from agentrl.controller.cluster.rollout_pool import Incident
from agentrl.controller.cluster.worker import Worker, WorkerSpec
from agentrl.engines import PauseMode
from agentrl.engines.sglang.weights import ServedDtype
from agentrl.errors import TrainingError
from agentrl.rollouts import GroupOutcome, GroupRequest, GroupState
from agentrl.tools import close_shared_tools
from agentrl.training import DistSpec
from agentrl.weight_sync import TrainerWeights, WeightsReport

__all__ = ["RayGroup", "start_ray"]

_KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**25),  # the largest that glibc takes
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_ARENA_MAX": "1",  # only the main arena grows and keeps as it is told
}
"""glibc gives large blocks back to the kernel, which clears every page of the next activation anew: a tenth of a small
model's update on a CPU. What the environment already says stands."""


def start_ray(num_actors: int, address: str | None = None) -> bool:
    """Joins a cluster, or starts a private one on this machine.

    Returns:
        Whether this call started it, so that its caller ends it.
    """
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault(
        "RAY_worker_niceness", "0"
    )  # Ray's 15 lets the sandboxes' processes starve the trainer
    if address is not None:
        ray.init(address=address, logging_level=logging.ERROR)
    else:
        ray.init(
            address="local",  # also where somebody's cluster runs on this machine
            num_cpus=num_actors + 1,
            include_dashboard=False,
            logging_level=logging.ERROR,
            log_to_driver=True,
        )
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

    def export_weights(self, dtype: ServedDtype) -> tuple[None, TrainerWeights | None]:
        """Two objects, so that the driver can wait for the first and leave the weights where they are."""
        return None, self._hosted.export_weights(dtype)

    @ray.method(concurrency_group="episodes")
    def submit(self, requests: Sequence[GroupRequest]) -> None:
        self._hosted.submit(requests)

    @ray.method(concurrency_group="episodes")
    def collect(self, timeout_s: float) -> Collected:
        return self._hosted.collect(timeout_s), self._hosted.take_notices()

    @ray.method(concurrency_group="episodes")
    def cancel(self, group_indices: Sequence[int], label: str) -> None:
        self._hosted.cancel(group_indices, label)

    @ray.method(concurrency_group="episodes")
    def in_flight(self) -> list[GroupState]:
        return self._hosted.in_flight()

    def close(self) -> None:
        self._hosted.close()
        close_shared_tools()  # the process is killed next, and runs nothing at its exit


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

    def __init__(
        self, num_ranks: int, *, threads: int, device: str = "cpu", call_timeout_s: float = 1800.0
    ) -> None:
        self._calls = ActorCalls(
            call_timeout_s, lambda rank: f"the worker of rank {rank}", self._failure
        )
        self._order = (
            threading.Lock()
        )  # calls of two threads reach every rank in one order, or collectives would cross
        self._hosts: list[str] = []
        options = {"num_cpus": 1, "num_gpus": 1 if device.startswith("cuda") else 0}
        env_vars = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        if device == "cpu":
            env_vars |= {
                name: os.environ.get(name, value) for name, value in _KEEP_FREED_MEMORY.items()
            }
        self._ranks = [
            _RANK_ACTOR.options(**options, runtime_env={"env_vars": env_vars}).remote()
            for _ in range(num_ranks)
        ]
        self._runners = RayRunners(self._ranks, self._calls)
        host, port = self._calls.get(self._ranks[0].free_address.remote(), "starting rank 0", 0)
        places = [DistSpec(rank, num_ranks, host, port, device) for rank in range(num_ranks)]
        refs = [
            rank.start.remote(place, threads)
            for rank, place in zip(self._ranks, places, strict=True)
        ]
        self._calls.gather(refs, "starting the workers")
        self._hosts = [place["host"] for place in self.describe()]

    @property
    def num_ranks(self) -> int:
        return len(self._ranks)

    def setup(self, spec: WorkerSpec) -> None:
        whole = shared(spec)
        self._runners.forget()
        self._calls.gather(
            [rank.setup.remote(whole) for rank in self._ranks], "setting up the stage"
        )

    def call(self, role: str, method: str, args_by_rank: Sequence[Sequence[Any]]) -> list[Any]:
        ranks = self._ranks[: len(args_by_rank)]
        with self._order:
            refs = [
                rank.call.remote(role, method, args)
                for rank, args in zip(ranks, args_by_rank, strict=True)
            ]
        return self._calls.gather(refs, f"{role}.{method}")

    def publish(self, version: int, mode: PauseMode = "retract") -> list[WeightsReport | None]:
        with self._order:
            refs = [rank.publish.remote(version, mode) for rank in self._ranks]
        return self._calls.gather(refs, f"publish({version})")

    def export_weights(self, dtype: ServedDtype) -> Any:
        """The actor's ``TrainerWeights`` as a reference into Ray's object store, for engines elsewhere."""
        with self._order:
            refs = [
                rank.export_weights.options(num_returns=2).remote(dtype) for rank in self._ranks
            ]
        self._calls.gather([done for done, _ in refs], "gathering the weights")
        return refs[0][1]

    def submit(self, requests: Sequence[GroupRequest]) -> None:
        self._runners.submit(requests)

    def collect(self, timeout_s: float) -> list[GroupOutcome]:
        return self._runners.collect(timeout_s)

    def cancel(self, group_indices: Sequence[int], *, label: str = "") -> None:
        self._runners.cancel(group_indices, label=label)

    def in_flight(self) -> list[GroupState]:
        return self._runners.in_flight()

    def take_incidents(self) -> list[Incident]:
        """Of servers alone: where a rank dies, the group does."""
        return [*self._runners.take_notices()]

    def describe(self) -> list[dict[str, Any]]:
        return self._calls.gather(
            [rank.describe.remote() for rank in self._ranks], "describing the workers"
        )

    def close(self) -> None:
        try:
            if self._calls.error is None:
                self._calls.gather(
                    [rank.close.remote() for rank in self._ranks], "closing the workers"
                )
        finally:
            for rank in self._ranks:
                ray.kill(rank)

    def _failure(self, message: str, rank: int, traceback_text: str) -> TrainingError:
        host = self._hosts[rank] if self._hosts else None
        return TrainingError(message, rank=rank, host=host, traceback_text=traceback_text)
