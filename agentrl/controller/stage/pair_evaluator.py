"""Pair evaluator: counts the held-out pairs on which a reward model agrees with the data."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from agentrl.controller.evaluator import Evaluation
from agentrl.controller.scoring import SequenceScores
from agentrl.types import TrajectoryGroup


@dataclass(frozen=True, slots=True)
class PairSet:
    """Held-out pairs under a name in metrics and the summary; the first trajectory of each group is
    the better."""

    name: str
    pairs: tuple[TrajectoryGroup, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PairEvaluator:
    """Evaluates the reward model of a group on every set.

    Args:
        sets: what is held out.
        scores: by the reward model as it is.
    """

    sets: Sequence[PairSet]
    scores: SequenceScores

    def evaluate(self, when: str, *, done: Collection[str] = ()) -> Iterator[Evaluation]:
        """Scores every set with the weights as they are, one after another.

        Its numbers: ``accuracy``, the share of pairs whose better trajectory has the higher score,
        a tie counts half; ``margin``, the mean difference of the two scores.
        """
        for item in (item for item in self.sets if item.name not in done):
            chosen, rejected = (
                self.scores.of(item.pairs).astype(np.float64).reshape(-1, 2).T
            )
            right = (chosen > rejected) + 0.5 * (chosen == rejected)
            margin = float((chosen - rejected).mean())
            numbers = {"accuracy": float(right.mean()), "margin": margin}
            yield Evaluation(item.name, when, len(item.pairs), numbers)
