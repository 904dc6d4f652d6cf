"""Train state: carries the loop's progress from step to step and through checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agentrl.types.env import MAIN_POLICY


@dataclass(frozen=True, slots=True)
class TrainState:
    """Progress of one stage.

    Args:
        step: batches trained.
        versions: of each policy: 0 for the weights that the stage starts from; grows with each
            publish of changed ones.
        algorithm: the algorithm's own state, JSON.
        without_signal: batches in which nothing could be learned.
    """

    step: int = 0
    versions: Mapping[str, int] = field(default_factory=lambda: {MAIN_POLICY: 0})
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    without_signal: int = 0

    def after(self, algorithm: Mapping[str, Any], *, has_signal: bool) -> TrainState:
        """The state one step later."""
        without_signal = self.without_signal + (not has_signal)
        return replace(
            self, step=self.step + 1, algorithm=algorithm, without_signal=without_signal
        )

    def published(self, changed: Collection[str]) -> TrainState:
        """The state once the engines serve the weights of the policies that changed."""
        versions = {
            name: number + (name in changed) for name, number in self.versions.items()
        }
        return replace(self, versions=versions)


def metric_prefix(policy: str) -> str:
    """Of the names of a policy's metrics; those of ``main`` have none."""
    return "" if policy == MAIN_POLICY else f"{policy}/"
