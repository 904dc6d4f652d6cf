"""Rollout workers: episodes and their engines in Ray actors of their own, on any machine of the cluster."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray

from agentrl.controller.cluster.episode_host import EpisodeHost, RolloutWorkerSpec
from agentrl.controller.cluster.ray_role_group import RayGroup
from agentrl.controller.cluster.ray_runtime import ActorCalls, Collected, shared
from agentrl.controller.cluster.rollout_pool import Incident
from agentrl.controller.cluster.supervision import WorkerFleet
from agentrl.controller.cluster.worker import WorkerSpec
from agentrl.engines import PauseMode
from agentrl.engines.sglang.weights import ServedDtype
from agentrl.errors import AgentRLError, ConfigError, EngineError
from agentrl.rollouts import GroupOutcome, GroupRequest, GroupState
from agentrl.tools import close_shared_tools
from agentrl.weight_sync import TrainerWeights, WeightsReport

__all__ = ["RayRolloutGroup"]


class _RolloutWorker:
    """An EpisodeHost behind Ray: updates run one at a time, episode calls beside them."""

    def __init__(self, place: int) -> None:
        self._place = place
        self._host: EpisodeHost | None = None

    def setup(self, parts: RolloutWorkerSpec | None) -> ServedDtype | None:
        """Hosts a stage's episodes, or none; the dtype that the engine serves."""
        self._end_stage()
        if parts is None:
            return None
        self._host = EpisodeHost(parts, f"episodes-{self._place}")
        return self._host.engine.layout().dtype

    def update(self, weights: TrainerWeights, version: int, mode: PauseMode) -> WeightsReport:
        return self._hosted.update(weights, version, mode)

    def describe(self) -> dict[str, Any]:
        node = ray.get_runtime_context().get_node_id()
        return {
            "rollout_worker": self._place,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "node": node,
        }

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
        self._end_stage()
        close_shared_tools()  # the process is killed next, and runs nothing at its exit

    def _end_stage(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            host.close()

    @property
    def _hosted(self) -> EpisodeHost:
        if self._host is None:
            raise ConfigError(
                "this stage has no rollouts: its algorithm learns from demonstrations"
            )
        return self._host


_options: dict[str, Any] = {"max_restarts": 0, "concurrency_groups": {"episodes": 4}}
_ROLLOUT_ACTOR: Any = ray.remote(**_options)(_RolloutWorker)


class RayRolloutGroup:
    """A ``WorkerGroup`` whose ranks train, and whose episodes are played by workers apart from them.

    New weights go from rank 0 through Ray's object store to every worker, once a machine; the driver sees none.
    They stay there until the next ones, for a worker that takes the place of one that died.

    Args:
        trainers: the ranks; this group owns them.
        num_workers: rollout workers.
        threads: torch and OpenMP threads of each.
        resources: that each asks of Ray, beside a CPU.
        max_restarts: workers that may die between two publishes; the next death ends the run.
        answer_s: seconds in which a worker answers what costs it no work; one that does not is replaced as well.
        call_timeout_s: deadline of one call.
    """

    def __init__(
        self,
        trainers: RayGroup,
        num_workers: int,
        *,
        threads: int,
        resources: Mapping[str, float] | None = None,
        max_restarts: int = 3,
        answer_s: float = 120.0,
        call_timeout_s: float = 1800.0,
    ) -> None:
        self._trainers = trainers
        self._dtype: ServedDtype | None = None
        self._calls = ActorCalls(call_timeout_s, lambda place: f"rollout worker {place}", _failure)
        env_vars = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        chosen = {
            "num_cpus": 1,
            "resources": dict(resources or {}),
            "scheduling_strategy": "SPREAD",
            "runtime_env": {"env_vars": env_vars},
        }
        actor = _ROLLOUT_ACTOR.options(**chosen)
        self._fleet = WorkerFleet(
            actor.remote, num_workers, self._calls, max_restarts=max_restarts, answer_s=answer_s
        )

    @property
    def num_ranks(self) -> int:
        return self._trainers.num_ranks

    def setup(self, spec: WorkerSpec) -> None:
        self._trainers.setup(replace(spec, episodes=None))
        self._dtype = self._fleet.setup(shared(spec.episodes))[0]

    def call(self, role: str, method: str, args_by_rank: Sequence[Sequence[Any]]) -> list[Any]:
        return self._trainers.call(role, method, args_by_rank)

    def publish(self, version: int, mode: PauseMode = "retract") -> list[WeightsReport | None]:
        """Every playing worker's engine serves the actor's weights as ``version`` when this returns."""
        if self._dtype is None:
            return []
        return self._fleet.update(self._trainers.export_weights(self._dtype), version, mode)

    def submit(self, requests: Sequence[GroupRequest]) -> None:
        self._fleet.submit(requests)

    def collect(self, timeout_s: float) -> list[GroupOutcome]:
        return self._fleet.collect(timeout_s)

    def cancel(self, group_indices: Sequence[int], *, label: str = "") -> None:
        self._fleet.cancel(group_indices, label=label)

    def in_flight(self) -> list[GroupState]:
        return self._fleet.in_flight()

    def take_incidents(self) -> list[Incident]:
        return self._fleet.take_incidents()

    def describe(self) -> list[dict[str, Any]]:
        refs = [actor.describe.remote() for actor in self._fleet.actors]
        return [
            *self._trainers.describe(),
            *self._calls.gather(refs, "describing the rollout workers"),
        ]

    def close(self) -> None:
        try:
            self._fleet.close()
        finally:
            self._trainers.close()


def _failure(message: str, place: int, traceback_text: str) -> AgentRLError:
    return EngineError(
        "\n".join(part for part in (message, traceback_text) if part), retryable=False
    )
