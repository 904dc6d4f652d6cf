"""Which groups of a batch teach: by advantages, not by rewards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from agentrl.controller.batch_plan import PlannedBatch
from agentrl.types import Batch
from tests.training.harness import make_batch


def teaching(batch: Batch, **columns: object) -> set[int]:
    planned = PlannedBatch(replace(batch, **columns), {})  # type: ignore[arg-type]
    return set(planned.teaching_groups())


def test_a_group_teaches_by_its_advantages_whatever_its_rewards_are() -> None:
    batch = make_batch((5, 7, 6, 8), rollouts=2)
    equal = {"reward": np.ones(4, np.float32), "credit": np.zeros(4, np.float32)}
    advantages = np.zeros(26, np.float32)
    assert teaching(batch, **equal, advantages=advantages) == set()
    assert teaching(batch, **equal) == set()
    # a critic says of a token of the second sample that it was worse, all rewards being equal
    advantages[11] = -0.5
    assert teaching(batch, **equal, advantages=advantages) == {0}


def test_without_advantages_a_group_teaches_by_its_credit() -> None:
    batch = make_batch((5, 7, 6, 8), rollouts=2)
    credit = np.array([0, 0, 0, 1], np.float32)
    turns = np.array([1, 0, 0, 0], np.float32)
    none = np.zeros(4, np.float32)
    assert teaching(batch, credit=credit, turn_credit=none) == {1}
    assert teaching(batch, credit=none, turn_credit=turns) == {0}
