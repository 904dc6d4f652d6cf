"""One process of a pool: its roles, and beside them the engine and the episodes that it hosts."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from agentrl.controller.weights import WeightsReport, publish_in_process
from agentrl.errors import AgentRLError, ConfigError, TrainingError
from agentrl.rollouts import (
    EngineControl,
    EpisodeRunner,
    GroupOutcome,
    GroupRequest,
    PauseMode,
    RolloutEngine,
    RolloutSpec,
)
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

__all__ = ["EngineFactory", "HostedEngine", "Worker", "WorkerSpec"]


class HostedEngine(RolloutEngine, EngineControl, Protocol):
    """An engine with both faces: this worker is its one owner."""


class EngineFactory(Protocol):
    """Builds the engine where it runs, from a model's folder."""

    def build(self) -> HostedEngine: ...


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a worker hosts during one stage.

    Args:
        actor: the policy being trained; None for a stage that trains a reward model.
        reference: what it is held near to; None for algorithms without one.
        reward_model: what is trained on pairs, or what scores the episodes; None for stages without one.
        engine: what generates; None for stages without rollouts.
        rollout: what the episodes share; None for stages without rollouts.
    """

    actor: ActorSpec | None
    reference: ReferenceSpec | None = None
    reward_model: RewardModelSpec | RewardLearnerSpec | None = None
    engine: EngineFactory | None = None
    rollout: RolloutSpec | None = None


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
        self._engine: HostedEngine | None = None
        self._runner: EpisodeRunner | None = None

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
        if spec.engine is not None and spec.rollout is not None:
            self._engine = spec.engine.build()
            self._runner = EpisodeRunner(spec.rollout, self._engine, name=f"episodes-{self._place.rank}")

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
        return publish_in_process(actor, self._engine, version, mode)

    def submit(self, requests: Sequence[GroupRequest]) -> None:
        """Starts groups in this worker's episode thread."""
        self._need_runner().submit(requests)

    def collect(self, timeout_s: float) -> list[GroupOutcome]:
        """Groups that came to their end here."""
        return self._need_runner().collect(timeout_s)

    def cancel(self, draws: Sequence[int], label: str) -> None:
        """Ends groups in flight here."""
        self._need_runner().cancel(draws, label=label)

    def close(self) -> None:
        """Ends everything that this worker started."""
        self._end_stage()
        leave()

    def _need_runner(self) -> EpisodeRunner:
        if self._runner is None:
            raise ConfigError("this stage has no rollouts: its algorithm learns from demonstrations")
        return self._runner

    def _end_stage(self) -> None:
        if self._runner is not None:
            self._runner.close()
        if self._engine is not None:
            self._engine.close()
        self._runner = self._engine = None
        self._roles.clear()
