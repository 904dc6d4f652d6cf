"""What algorithms read, by hand: the columns that a test gives, and plain ones for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentrl.algorithms import Counts, GroupSummary, PolicyInputs, Rewards, TokenCredit


def group_of(*rewards: float, index: int = 0, **columns: Any) -> GroupSummary:
    """A group of rollouts of one token each."""
    number = len(rewards)
    plain = {
        "num_tokens": np.ones(number, np.int64),
        "truncated": np.zeros(number, np.bool_),
    }
    return GroupSummary(index, np.array(rewards, np.float64), **(plain | columns))


def rewards_of(reward: Any, group: Any, **columns: Any) -> Rewards:
    """Trajectories of one turn of one token each."""
    number = len(reward)
    turns = columns.get("turn_trajectory", np.arange(number))
    plain = {
        "num_tokens": np.ones(number, np.int64),
        "truncated": np.zeros(number, np.bool_),
        "turn_trajectory": turns,
        "turn_reward": np.zeros(len(turns)),
        "state_key": np.zeros(len(turns), np.uint64),
    }
    return Rewards(np.asarray(reward, np.float64), np.asarray(group), **(plain | columns))


def counts_of(
    tokens: Sequence[int], trajectory: Sequence[int], weight: Any = None
) -> Counts:
    """Samples; weighed alike unless told otherwise."""
    own = np.ones(len(tokens)) if weight is None else np.asarray(weight, np.float64)
    return Counts(np.array(tokens), np.array(trajectory), own)


def policy_inputs(logprobs: Tensor, **columns: Any) -> PolicyInputs:
    """Sampled tokens of one sample, whose old and rollout logprobs are the current ones."""
    number = logprobs.shape[0]
    rows = torch.zeros(number, dtype=torch.int64)
    plain = {
        "old_logprobs": logprobs.detach(),
        "rollout_logprobs": logprobs.detach(),
        "sampled": torch.ones(number, dtype=torch.bool),
        "entropy": torch.ones(number),
        "sample_row": rows,
        "turn_row": rows,
        "trajectory_row": rows,
        "staleness": rows,
    }
    return PolicyInputs(logprobs, **(plain | columns))


def token_credit(mask: Tensor, **columns: Any) -> TokenCredit:
    """Tokens of one turn of one trajectory without any credit."""
    zeros, rows = torch.zeros(mask.shape), torch.zeros(mask.shape, dtype=torch.int64)
    plain = {
        "trajectory": zeros,
        "turn": zeros,
        "reward": zeros,
        "turn_row": rows,
        "sample_row": rows,
        "trajectory_row": rows,
        "cut": rows.bool(),
        "interrupted": rows.bool(),
        "rollout_logprobs": zeros,
    }
    return TokenCredit(mask=mask, **(plain | columns))
