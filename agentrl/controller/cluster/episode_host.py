"""Episodes and the engine that they use, wherever they are hosted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Protocol

from agentrl.engines import EngineControl, EngineNotice, PauseMode, RolloutEngine
from agentrl.rollouts import (
    EpisodeRunner,
    GroupOutcome,
    GroupRequest,
    GroupState,
    RolloutSpec,
    paced_collector,
)
from agentrl.weight_sync import TrainerWeights, WeightsReport, to_tensor, update_engine

__all__ = ["EngineFactory", "EpisodeHost", "HostedEngine", "RolloutWorkerSpec"]


class HostedEngine(RolloutEngine, EngineControl, Protocol):
    """An engine with both faces: its host is its one owner."""


class EngineFactory(Protocol):
    """Builds the engine where it runs, from a model's folder."""

    def build(self) -> HostedEngine: ...


@dataclass(frozen=True, slots=True)
class RolloutWorkerSpec:
    """What a host of episodes is made of: picklable.

    Args:
        engine: what generates.
        rollout: what the episodes share.
    """

    engine: EngineFactory
    rollout: RolloutSpec


class EpisodeHost:
    """An engine, and beside it the episodes that use it, in a thread of their own.

    Args:
        parts: what it is made of.
        name: of the thread.
    """

    def __init__(self, parts: RolloutWorkerSpec, name: str) -> None:
        with ExitStack() as opened:
            opened.enter_context(paced_collector())
            self.engine = parts.engine.build()
            opened.callback(self.engine.close)
            self._runner = EpisodeRunner(parts.rollout, self.engine, name=name)
            opened.callback(self._runner.close)
            self._opened = opened.pop_all()

    def update(self, weights: TrainerWeights, version: int, mode: PauseMode) -> WeightsReport:
        """Serves weights that came from another process; see ``update_engine``."""
        tensors = ((array.name, to_tensor(array)) for array in weights.arrays)
        with self.clock_paused():
            return update_engine(self.engine, tensors, lambda: weights.checksum, version, mode)

    def clock_paused(self) -> AbstractContextManager[None]:
        """No deadline of an episode here counts within: its engine is paused for new weights."""
        return self._runner.deadlines.clock_paused()

    def submit(self, requests: Sequence[GroupRequest]) -> None:
        """Starts groups."""
        self._runner.submit(requests)

    def collect(self, timeout_s: float) -> list[GroupOutcome]:
        """Groups that came to their end."""
        return self._runner.collect(timeout_s)

    def take_notices(self) -> list[EngineNotice]:
        """What the engine overcame since the last call."""
        return self.engine.take_notices()

    def cancel(self, group_indices: Sequence[int], label: str) -> None:
        """Ends groups in flight."""
        self._runner.cancel(group_indices, label=label)

    def in_flight(self) -> list[GroupState]:
        """Groups in training that did not come by ``collect`` yet."""
        return self._runner.in_flight()

    def close(self) -> None:
        """Ends the episodes, then the engine."""
        self._opened.close()
