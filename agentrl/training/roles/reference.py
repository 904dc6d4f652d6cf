"""The reference: the policy as it was, frozen, against which a KL divergence is estimated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from agentrl.training.fsdp.process_group import DistSpec, data_mesh
from agentrl.training.fsdp.sharding import shard_over
from agentrl.training.models.packed_model import DType, torch_dtype
from agentrl.training.models.policy_model import load_policy
from agentrl.training.roles.logprobs import trained_logprobs
from agentrl.types import BatchShard, Collect, Dispatch, register


@dataclass(frozen=True, slots=True)
class ReferenceSpec:
    """What a reference is built from; picklable.

    Args:
        model_path: a Hugging Face folder, the one that the actor starts from.
        dtype: of the forward.
        attention: as the actor's.
    """

    model_path: str
    dtype: DType = "float32"
    attention: Literal["segments", "flash_attention_2"] = "segments"

    def build(self, place: DistSpec) -> Reference:
        """The role on one rank."""
        return Reference(self, place)


class Reference:
    """One rank of a frozen policy. ``process_group.join`` comes first.

    Args:
        spec: what to build.
        place: this rank's place.

    Raises:
        DataError: the folder holds no causal model.
        ConfigError: the family can't be trained packed.
    """

    def __init__(self, spec: ReferenceSpec, place: DistSpec) -> None:
        self.device = torch.device(place.device)
        self.model = load_policy(spec.model_path, attention=spec.attention, device=self.device)
        self.model.requires_grad_(False)
        shard_over(self.model, data_mesh(place), dtype=torch_dtype(spec.dtype))

    @register(Dispatch.DATA, collect=Collect.COLUMNS)
    def logprobs(self, shard: BatchShard) -> dict[str, npt.NDArray[np.float32]]:
        """``{"ref_logprobs": [T]}``; zeros off the mask."""
        return {"ref_logprobs": trained_logprobs(self.model, shard, self.device)}
