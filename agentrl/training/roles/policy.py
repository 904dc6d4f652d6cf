"""Policy role: a causal model whose logprobs of trained tokens are computed, trained or frozen.

The reference is the policy as it was, frozen, against which a KL divergence is estimated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agentrl.training.models.packed_model import ModelSpec
from agentrl.training.parallel.process_group import DistSpec
from agentrl.training.roles.role import Role
from agentrl.types import BatchShard, Collect, Dispatch, register
from agentrl.types.arrays import Floats


class PolicyRole(Role):
    """One rank of a policy."""

    kind = "policy"

    def trained_logprobs(self, shard: BatchShard) -> Floats:
        """``[T]`` logprobs in the shard's order, at each sample's temperature, without
        gradients; zeros off the mask.
        """
        column = np.zeros(shard.batch.num_tokens, dtype=self.column_dtype)
        self.infer(shard, lambda packed, answer: [(column, packed.source, answer[0])])
        return column


@dataclass(frozen=True, slots=True)
class ReferenceSpec(ModelSpec):
    """What a reference is built from: the folder that the actor starts from, or another's."""

    setting = "ReferenceSpec.model_path"

    def build(self, place: DistSpec) -> Reference:
        """The role on one rank."""
        return Reference(self, place)


class Reference(PolicyRole):
    """One rank of a frozen policy."""

    @register(Dispatch.DATA, collect=Collect.COLUMNS)
    def logprobs(self, shard: BatchShard) -> dict[str, Floats]:
        """``{"ref_logprobs": [T]}``; zeros off the mask."""
        return {"ref_logprobs": self.trained_logprobs(shard)}
