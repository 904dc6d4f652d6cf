"""One process of a pool: its roles, and beside them the engine and the episodes that it hosts."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from agentrl.controller.cluster.episode_host import EpisodeHost, RolloutWorkerSpec
from agentrl.engines import EngineNotice, PauseMode
from agentrl.engines.sglang.weights import ServedDtype
from agentrl.errors import AgentRLError, ConfigError, TrainingError
from agentrl.rollouts import GroupOutcome, GroupRequest, GroupState
from agentrl.training import (
    Actor,
    ActorSpec,
    DistSpec,
    Reference,
    ReferenceSpec,
    RewardLearner,
    RewardLearnerSpec,
    RewardModel,
    RewardModelSpec,
    join,
    leave,
)
from agentrl.weight_sync import TrainerWeights, WeightsReport, publish_in_process, to_array

__all__ = ["Worker", "WorkerSpec"]


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a worker hosts during one stage.

    Args:
        actor: the policy being trained; None for a stage that trains a reward model.
        reference: what it is held near to; None for algorithms without one.
        reward_model: what is trained on pairs, or what scores the episodes; None for stages without one.
        episodes: what plays, where each rank hosts episodes; None for stages without rollouts.
    """

    actor: ActorSpec | None
    reference: ReferenceSpec | None = None
    reward_model: RewardModelSpec | RewardLearnerSpec | None = None
    episodes: RolloutWorkerSpec | None = None


class Worker:
    """Runs in a Ray actor, or in the driver itself (``controller.mode: inline``).

    Args:
        dist: this rank's place among the others.
        threads: torch and OpenMP threads of this process.
    """

    def __init__(self, dist: DistSpec, threads: int) -> None:
        self._place = dist
        torch.set_num_threads(threads)
        join(dist)
        self._roles: dict[str, object] = {}
        self._host: EpisodeHost | None = None

    def describe(self) -> dict[str, Any]:
        """Where this rank lives."""
        return {"rank": self._place.rank, "host": socket.gethostname(), "pid": os.getpid()}

    def setup(self, spec: WorkerSpec) -> None:
        """Builds what a stage needs; what an earlier stage left is ended first."""
        self._end_stage()
        if spec.actor is not None:
            self._roles["actor"] = Actor(spec.actor, self._place)
        if spec.reference is not None:
            self._roles["reference"] = Reference(spec.reference, self._place)
        if isinstance(spec.reward_model, RewardLearnerSpec):
            self._roles["reward_model"] = RewardLearner(spec.reward_model, self._place)
        elif spec.reward_model is not None:
            self._roles["reward_model"] = RewardModel(spec.reward_model, self._place)
        if spec.episodes is not None:
            self._host = EpisodeHost(spec.episodes, f"episodes-{self._place.rank}")

    def call(self, role: str, method: str, args: Sequence[Any]) -> Any:
        """Runs a role's method; what it raises comes back with rank and host, and where it is not ours a traceback.

        Raises:
            TrainingError: the method raised.
        """
        try:
            return getattr(self._roles[role], method)(*args)
        except TrainingError as error:
            error.rank = self._place.rank if error.rank is None else error.rank
            error.host = error.host or socket.gethostname()
            raise
        except AgentRLError:
            raise
        except Exception as error:  # boundary: named with the rank, for the driver
            raise TrainingError(
                f"rank {self._place.rank}: {role}.{method} raised {type(error).__name__}: {error}",
                rank=self._place.rank,
                host=socket.gethostname(),
                traceback_text=traceback.format_exc(),
            ) from error

    def publish(self, version: int, mode: PauseMode) -> WeightsReport | None:
        """Gives the engine here, paused by ``mode``, the actor's weights; every rank takes part in gathering them."""
        actor = self._roles["actor"]
        assert isinstance(actor, Actor)
        if self._host is None:
            return publish_in_process(actor, None, version)
        with self._host.clock_paused():
            return publish_in_process(actor, self._host.engine, version, mode)

    def export_weights(self, dtype: ServedDtype) -> TrainerWeights | None:
        """The actor's weights for engines elsewhere, by rank 0; every rank takes part in gathering them."""
        actor = self._roles["actor"]
        assert isinstance(actor, Actor)
        first = self._place.rank == 0
        arrays = tuple(
            to_array(name, tensor, dtype) for name, tensor in actor.weights(dtype) if first
        )
        checksum = actor.checksum(dtype)
        return TrainerWeights(arrays, checksum) if first else None

    def submit(self, requests: Sequence[GroupRequest]) -> None:
        """Starts groups in this worker's episode thread."""
        self._hosted.submit(requests)

    def collect(self, timeout_s: float) -> list[GroupOutcome]:
        """Groups that came to their end here."""
        return self._hosted.collect(timeout_s)

    def take_notices(self) -> list[EngineNotice]:
        """What the engine here overcame since the last call; none in a stage without one."""
        return [] if self._host is None else self._host.take_notices()

    def cancel(self, group_indices: Sequence[int], label: str) -> None:
        """Ends groups in flight here."""
        self._hosted.cancel(group_indices, label)

    def in_flight(self) -> list[GroupState]:
        """Groups in training that were not collected here yet."""
        return self._hosted.in_flight()

    def close(self) -> None:
        """Ends everything that this worker started."""
        self._end_stage()
        leave()

    @property
    def _hosted(self) -> EpisodeHost:
        if self._host is None:
            raise ConfigError(
                "this stage has no rollouts: its algorithm learns from demonstrations"
            )
        return self._host

    def _end_stage(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            host.close()
        self._roles.clear()
