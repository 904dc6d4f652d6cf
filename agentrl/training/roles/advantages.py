"""Advantages: spreads credit over a shard's tokens, with moments over every rank."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from agentrl.algorithms import AlgorithmSpec, TokenCredit
from agentrl.types import Batch

_EPS = 1e-8


def shard_advantages(
    batch: Batch, algorithm: AlgorithmSpec, device: torch.device
) -> npt.NDArray[np.float32]:
    """``[T]`` float32 advantages of a shard's tokens, zeros off the mask.

    Where the algorithm normalises, all ranks take part: the moments are (n, Σ, Σ²) in float64 over
    the trained tokens of the whole batch.

    Raises:
        ValueError: an advantage of a trained token is not finite.
    """
    mask = batch.loss_mask != 0
    trajectory = np.repeat(batch.trajectory, batch.lengths)
    turn = np.zeros(batch.num_tokens, dtype=np.float32)
    turn[mask] = batch.turn_credit[batch.turn_index[mask]]
    credit = TokenCredit(
        trajectory=torch.from_numpy(batch.credit[trajectory]).to(device),
        turn=torch.from_numpy(turn).to(device),
        mask=torch.from_numpy(mask.astype(np.float32)).to(device),
    )
    advantages = algorithm.advantages(credit).advantages
    trained = credit.mask != 0
    if not bool(torch.isfinite(advantages[trained]).all()):
        raise ValueError(
            "an advantage of a trained token is not finite; look at batch.credit and "
            "batch.turn_credit"
        )
    if algorithm.normalize_advantages:
        advantages = _normalize(advantages, trained)
    result: npt.NDArray[np.float32] = torch.where(trained, advantages, 0.0).float().cpu().numpy()
    return result


def _normalize(advantages: Tensor, trained: Tensor) -> Tensor:
    own = advantages[trained].double()
    moments = torch.stack([torch.ones_like(own).sum(), own.sum(), (own * own).sum()])
    dist.all_reduce(moments)
    count, total, squares = moments.tolist()
    if count == 0:
        return advantages
    mean = total / count
    variance = max(squares / count - mean * mean, 0.0)
    normalized: Tensor = (advantages.double() - mean) / (math.sqrt(variance) + _EPS)
    return normalized.float()
