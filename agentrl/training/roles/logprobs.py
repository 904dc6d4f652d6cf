"""Logprobs of a shard's trained tokens, without gradients."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from agentrl.training.data.packing import micro_batches
from agentrl.training.fsdp.sharding import without_gradients
from agentrl.training.models.policy_model import PolicyModel
from agentrl.types import BatchShard


def trained_logprobs(
    model: PolicyModel, shard: BatchShard, device: torch.device
) -> npt.NDArray[np.float32]:
    """``[T]`` float32 logprobs in the shard's order, at each sample's temperature; zeros off the
    mask.

    Every rank takes part with equally many micro-batches.
    """
    column = np.zeros(shard.batch.num_tokens, dtype=np.float32)
    with without_gradients(model):
        for packed in micro_batches(shard, device, share_prefixes=model.shares_prefixes):
            logprobs, _ = model(packed)
            if packed.source.size:
                column[packed.source] = logprobs.cpu().numpy()
    return column
