"""Policy role: a causal model whose logprobs of trained tokens are computed, trained or frozen."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from agentrl.training.fsdp.sharding import without_gradients
from agentrl.training.models.policy_model import PolicyModel, load_policy
from agentrl.training.roles.role import Role
from agentrl.types import BatchShard


class PolicyRole(Role):
    """One rank of a policy."""

    def load_model(self) -> PolicyModel:
        """A causal model."""
        return load_policy(self.spec, self.device)

    def trained_logprobs(self, shard: BatchShard) -> npt.NDArray[np.float32]:
        """``[T]`` float32 logprobs in the shard's order, at each sample's temperature, without
        gradients; zeros off the mask.

        Every rank takes part with equally many micro-batches.
        """
        column = np.zeros(shard.batch.num_tokens, dtype=np.float32)
        with without_gradients(self.model):
            for packed in self.packed(shard):
                logprobs, _ = self.model(packed)
                if packed.source.size:
                    column[packed.source] = logprobs.cpu().numpy()
        return column
