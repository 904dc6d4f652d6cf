"""The actor: the policy being trained, on one rank of its pool.

Axes: T packed tokens of a shard, N trained tokens of a micro-batch, S samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from agentrl.algorithms import PolicyInputs
from agentrl.errors import ConfigError
from agentrl.store.store_spec import Detail
from agentrl.training.data.packing import Packed
from agentrl.training.fsdp.process_group import DistSpec
from agentrl.training.fsdp.weights import checksums, full_weights
from agentrl.training.models.packed_model import DType, torch_dtype
from agentrl.training.roles.advantages import shard_advantages
from agentrl.training.roles.learner import LearnerSpec, LearningRole
from agentrl.training.roles.policy import PolicyRole
from agentrl.training.roles.token_columns import TokenColumns
from agentrl.training.roles.update_stats import StatSum
from agentrl.types import Batch, BatchShard, Collect, Dispatch, Stat, Stats, UpdateStats, register

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ActorSpec(LearnerSpec):
    """What an actor is built from.

    Args:
        detail: which numbers of each token an update returns (docs/annotations.md).
    """

    detail: Detail = "basic"

    def build(self, place: DistSpec) -> Actor:
        """The role on one rank."""
        return Actor(self, place)


class Actor(PolicyRole, LearningRole):
    """One rank of the policy.

    Raises:
        ConfigError: as ``Role``, or the algorithm has no policy's loss.
    """

    name = "actor"
    spec: ActorSpec

    def __init__(self, spec: ActorSpec, place: DistSpec) -> None:
        if spec.algorithm.policy_loss is None:
            raise ConfigError(
                f"algorithm {spec.algorithm.name!r} trains no policy, so no actor can be built for "
                "it"
            )
        self._policy_loss = spec.algorithm.policy_loss
        super().__init__(spec, place)

    @register(Dispatch.DATA, collect=Collect.COLUMNS)
    def logprobs(self, shard: BatchShard) -> dict[str, F32]:
        """``{"old_logprobs": [T]}`` of the weights as they are; zeros off the mask."""
        return {"old_logprobs": self.trained_logprobs(shard)}

    @register(Dispatch.DATA, collect=Collect.COLUMNS)
    def advantages(self, shard: BatchShard) -> dict[str, F32]:
        """``{"advantages": [T]}``: credit brought to tokens; zeros off the mask."""
        return {"advantages": shard_advantages(shard.batch, self.spec.algorithm, self.device)}

    @register(Dispatch.DATA, collect=Collect.STATS)
    def update(self, shard: BatchShard) -> UpdateStats:
        """One optimizer step on a mini-batch: L = Σ_t w_s(t) · (c_t · ℓ_t + β · k_t) over all
        ranks' trained tokens.

        Returns:
            This rank's statistics, to be merged over ranks, and the columns of ``spec.detail``. A
            mini-batch without trained tokens takes no step and counts in ``optim/skipped``, one
            whose gradient is not finite in ``optim/not_finite``.

        Raises:
            ValueError: the shard has no sample weights, or lacks a column that the algorithm needs.
            TrainingError: weights are gathered; no step was taken.
        """
        if shard.sample_weight is None:
            raise ValueError("an update needs sample weights: shards(batch, plan, weights)")
        first = dist.get_rank() == 0
        trained = torch.tensor(int(np.count_nonzero(shard.batch.loss_mask)), device=self.device)
        dist.all_reduce(trained)
        if int(trained) == 0:
            return UpdateStats({"optim/skipped": Stat.of([1.0])} if first else {}, {})
        # a copy: what Ray hands over is read-only
        weights = torch.tensor(shard.sample_weight, device=self.device)
        stats = StatSum()
        columns = TokenColumns(self.spec.detail)
        losses = torch.zeros(3, dtype=torch.float64, device=self.device)
        for packed in self.packed(shard):
            losses += self._backward(packed, shard.batch, weights, stats, columns)
        once = self.step()
        # the loss of the mini-batch, and with a reference its parts; once over all ranks
        names = ["policy/loss", "policy/pg_loss", "policy/kl_loss"]
        shown = names if self.spec.algorithm.needs.reference else names[:1]
        for name, total in zip(shown, losses, strict=False):
            stats.add(name, total, int(first))
        return UpdateStats(Stats(stats.result()) + once, columns.result(shard.batch.num_tokens))

    def weights(self, dtype: DType | None = None) -> Iterator[tuple[str, Tensor]]:
        """``(Hugging Face name, whole tensor)``, one at a time, by every rank to its end; see
        ``full_weights``.

        Args:
            dtype: as served; None is the spec's own.
        """
        return full_weights(self.model, self.dtype if dtype is None else torch_dtype(dtype))

    @register(Dispatch.FIRST)
    def checksum(self, dtype: DType | None = None) -> dict[str, int]:
        """Checksums by name of what ``weights(dtype)`` yields (docs/controller.md)."""
        return checksums(self.model, self.dtype if dtype is None else torch_dtype(dtype))

    def _backward(
        self,
        packed: Packed,
        batch: Batch,
        weights: Tensor,
        stats: StatSum,
        columns: TokenColumns,
    ) -> Tensor:
        """Forward and backward of a micro-batch.

        Returns:
            ``[3]`` float64, its part of the loss, of Σ w·c·ℓ and of Σ w·k.
        """
        logprobs, entropy = self.model(packed)
        if packed.targets.numel() == 0:
            torch.autograd.backward(logprobs.sum() * 0.0)
            return torch.zeros(3, dtype=torch.float64, device=self.device)
        rollout_logprobs = packed.column(batch.rollout_logprobs)
        assert rollout_logprobs is not None
        inputs = PolicyInputs(
            logprobs=logprobs,
            rollout_logprobs=rollout_logprobs,
            sampled=packed.sampled,
            old_logprobs=packed.column(batch.old_logprobs),
            ref_logprobs=packed.column(batch.ref_logprobs),
            advantages=packed.column(batch.advantages),
        )
        algorithm = self.spec.algorithm
        outcome = self._policy_loss(inputs)
        weight = (weights[packed.sample] * packed.weight).double()
        corrected = weight
        correction = None
        if algorithm.correction is not None:
            correction = algorithm.correction(inputs).detach()
            corrected = weight * correction
        loss = surrogate = (outcome.loss * corrected).sum()
        kl = torch.zeros_like(surrogate)
        if outcome.kl is not None:
            kl = (outcome.kl * weight).sum()
            loss = surrogate + outcome.kl_coef * kl
        torch.autograd.backward(loss)
        for name, stat in outcome.stats.items():
            stats.add(name, stat.sum, stat.count)
        stats.add_values("policy/entropy", entropy)
        stats.add_mismatch(inputs)
        columns.add(packed.source, inputs, outcome, entropy, correction)
        return torch.stack([loss, surrogate, kl]).detach()
