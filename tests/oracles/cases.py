"""The batch that both sides compute: ragged rows in float64, as matrices and as trained tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agentrl.algorithms import Counts, PolicyInputs, Rewards
from agentrl.algorithms import make_algorithm as make
from tests.algorithms.made import policy_inputs, rewards_of

F64 = npt.NDArray[np.float64]
CLOSE = {"rtol": 1e-6, "atol": 1e-6}

MASK = np.array(
    [
        [1, 1, 1, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 0, 0, 0, 0, 0],
        [1, 0, 0, 0, 0, 0, 0, 0, 0],  # one token
        [1, 1, 0, 0, 1, 1, 1, 0, 0],  # a tool's tokens inside
        [0, 0, 0, 0, 0, 0, 0, 0, 0],  # nothing is trained
        [0, 1, 1, 0, 1, 0, 1, 1, 1],
    ],
    dtype=np.float64,
)
GROUP = np.array([0, 0, 0, 1, 1, 1])
ROWS, PLACES = np.nonzero(MASK)


@dataclass(frozen=True)
class Case:
    """Columns of ``[6, 9]``; entries off the mask are noise that nobody may read."""

    log_prob: F64
    old_log_prob: F64
    other: F64
    advantages: F64
    values: F64
    old_values: F64
    rewards: F64

    def flat(self, name: str) -> Tensor:
        """``[N]`` entries of trained tokens."""
        return torch.from_numpy(getattr(self, name)[ROWS, PLACES].copy())


def make_case() -> Case:
    """The batch that all oracles are asked about."""
    rng = np.random.default_rng(7)
    log_prob = -rng.exponential(2.0, MASK.shape)
    old = np.minimum(log_prob + rng.normal(0, 0.4, MASK.shape), -1e-3)
    old[0, 2] = log_prob[0, 2] - 15.0  # huge ratios, one of either kind
    old[3, 5] = log_prob[3, 5] + 15.0
    log_prob[3, 5] -= 15.0 - 1e-3
    old[3, 5] = min(old[3, 5] - 15.0, -1e-3)
    advantages = rng.normal(size=(6, 1)) * np.ones_like(MASK)
    rewards = np.zeros_like(MASK)
    for row in range(6):
        if MASK[row].any():
            rewards[row, np.flatnonzero(MASK[row])[-1]] = rng.integers(0, 3)
    values = rng.normal(size=MASK.shape)
    return Case(
        log_prob,
        old,
        np.minimum(log_prob + rng.normal(0, 1.0, MASK.shape), -1e-3),
        advantages,
        values,
        values + rng.normal(0, 0.5, MASK.shape),
        rewards,
    )


def inputs(case: Case, **columns: Tensor) -> PolicyInputs:
    """What a loss is given of the batch; ``columns`` in the place of the case's own."""
    own = {"old_logprobs": case.flat("old_log_prob"), "advantages": case.flat("advantages")}
    return policy_inputs(
        case.flat("log_prob").requires_grad_(),
        sample_row=torch.from_numpy(ROWS),
        **(own | columns),
    )


def weights_of(reduction: str, constant_tokens: int | None = None) -> Tensor:
    """``[N]`` weights of trained tokens."""
    counts = Counts(MASK.sum(1).astype(np.int64), np.arange(6), np.ones(6))
    spec = make("grpo", {"reduction": reduction, "constant_tokens": constant_tokens})
    return torch.from_numpy(spec.reduction(counts)[ROWS])


def scattered(values: Tensor | F64) -> F64:
    """``[6, 9]`` of ``[N]``."""
    column = np.zeros(MASK.shape)
    column[ROWS, PLACES] = np.asarray(values)
    return column


def totals(case: Case) -> Rewards:
    """The rewards of its trajectories, in two groups."""
    return rewards_of(case.rewards.sum(1), GROUP)


def spread(values: F64) -> F64:
    """``[6, 9]`` of a number for each row; zeros off the mask."""
    return values[:, None] * MASK
