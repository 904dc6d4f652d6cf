"""Train state: carries the loop's progress from step to step and through checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class TrainState:
    """Progress of one stage.

    Args:
        step: batches trained.
        policy_version: 0 for the weights that the stage starts from; grows with each publish of
            changed ones.
        algorithm: the algorithm's own state, JSON.
        totals: running totals that metrics go on from, such as trajectories and tokens.
    """

    step: int = 0
    policy_version: int = 0
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    totals: Mapping[str, float] = field(default_factory=dict)

    def after(self, algorithm: Mapping[str, Any], added: Mapping[str, float]) -> TrainState:
        """The state one step later."""
        totals = {name: self.totals.get(name, 0.0) + value for name, value in added.items()}
        return replace(
            self, step=self.step + 1, algorithm=algorithm, totals={**self.totals, **totals}
        )

    def published(self) -> TrainState:
        """The state once the engines serve the changed weights."""
        return replace(self, policy_version=self.policy_version + 1)
