"""The reference: the policy as it was, frozen, against which a KL divergence is estimated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agentrl.training.fsdp.process_group import DistSpec
from agentrl.training.models.packed_model import ModelSpec
from agentrl.training.roles.policy import PolicyRole
from agentrl.types import BatchShard, Collect, Dispatch, register


@dataclass(frozen=True, slots=True)
class ReferenceSpec(ModelSpec):
    """What a reference is built from: the folder that the actor starts from."""

    def build(self, place: DistSpec) -> Reference:
        """The role on one rank."""
        return Reference(self, place)


class Reference(PolicyRole):
    """One rank of a frozen policy."""

    @register(Dispatch.DATA, collect=Collect.COLUMNS)
    def logprobs(self, shard: BatchShard) -> dict[str, npt.NDArray[np.float32]]:
        """``{"ref_logprobs": [T]}``; zeros off the mask."""
        return {"ref_logprobs": self.trained_logprobs(shard)}
