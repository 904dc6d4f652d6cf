"""The actor: the policy being trained, on one rank of its pool.

Axes: T packed tokens of a shard, N trained tokens of a micro-batch, S samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from agentrl.algorithms import AlgorithmSpec, PolicyInputs
from agentrl.errors import ConfigError
from agentrl.training.data.packing import Packed, micro_batches
from agentrl.training.determinism import use_deterministic_kernels
from agentrl.training.fsdp.process_group import DistSpec, data_mesh
from agentrl.training.fsdp.sharding import shard_over
from agentrl.training.fsdp.weights import checksums, full_weights
from agentrl.training.models.packed_model import DType, torch_dtype
from agentrl.training.models.policy_model import PolicyModel, load_policy
from agentrl.training.optim.optim_spec import OptimSpec
from agentrl.training.roles.advantages import shard_advantages
from agentrl.training.roles.learner import Learner, LearningRole
from agentrl.training.roles.logprobs import trained_logprobs
from agentrl.training.roles.model_info import ModelInfo, model_facts
from agentrl.training.roles.update_stats import StatSum
from agentrl.types import BatchShard, Collect, Dispatch, Stat, Stats, register

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ActorSpec:
    """What an actor is built from, in the process that hosts it; picklable.

    Args:
        model_path: a Hugging Face folder.
        algorithm: whose losses it minimises.
        optim: how weights move.
        total_steps: optimizer steps after which the schedule ends; None for a constant one alone.
        dtype: of the forward and of what is published; parameters and optimizer are float32.
        attention: ``segments`` anywhere, ``flash_attention_2`` on a GPU that has it.
        gradient_checkpointing: recompute layers in the backward.
        deterministic: refuse kernels whose result depends on timing.
    """

    model_path: str
    algorithm: AlgorithmSpec
    optim: OptimSpec = field(default_factory=OptimSpec)
    total_steps: int | None = None
    dtype: DType = "float32"
    attention: Literal["segments", "flash_attention_2"] = "segments"
    gradient_checkpointing: bool = False
    deterministic: bool = False

    def build(self, place: DistSpec) -> Actor:
        """The role on one rank."""
        return Actor(self, place)


class Actor(LearningRole):
    """One rank of the policy. ``process_group.join`` comes first; every method is called on all
    ranks alike.

    Args:
        spec: what to build.
        place: this rank's place.

    Raises:
        DataError: the folder holds no causal model.
        ConfigError: the family can't be trained packed, or the algorithm has no policy's loss.
    """

    def __init__(self, spec: ActorSpec, place: DistSpec) -> None:
        if spec.deterministic:
            use_deterministic_kernels()
        if spec.algorithm.policy_loss is None:
            raise ConfigError(
                f"algorithm {spec.algorithm.name!r} trains no policy, so no actor can be built for "
                "it"
            )
        self.spec = spec
        self._policy_loss = spec.algorithm.policy_loss
        self.device = torch.device(place.device)
        self.folder = Path(spec.model_path)
        self.dtype = torch_dtype(spec.dtype)
        self.model: PolicyModel = load_policy(
            spec.model_path,
            attention=spec.attention,
            gradient_checkpointing=spec.gradient_checkpointing,
            device=self.device,
        )
        self._facts = model_facts(self.model)
        shard_over(self.model, data_mesh(place), dtype=self.dtype)
        self.learner = Learner(spec.optim, self.model, self.model.head, "actor", spec.total_steps)

    @register(Dispatch.FIRST)
    def facts(self) -> ModelInfo:
        """Sizes of the model."""
        return self._facts

    @register(Dispatch.DATA, collect=Collect.COLUMNS)
    def logprobs(self, shard: BatchShard) -> dict[str, F32]:
        """``{"old_logprobs": [T]}`` of the weights as they are; zeros off the mask."""
        return {"old_logprobs": trained_logprobs(self.model, shard, self.device)}

    @register(Dispatch.DATA, collect=Collect.COLUMNS)
    def advantages(self, shard: BatchShard) -> dict[str, F32]:
        """``{"advantages": [T]}``: credit brought to tokens; zeros off the mask."""
        algorithm = self.spec.algorithm
        return {"advantages": shard_advantages(shard.batch, algorithm, self.device)}

    @register(Dispatch.DATA, collect=Collect.STATS)
    def update(self, shard: BatchShard) -> Stats:
        """One optimizer step on a mini-batch: L = Σ_t w_s(t) · (c_t · ℓ_t + β · k_t) over all
        ranks' trained tokens.

        Returns:
            This rank's statistics, to be merged over ranks. A mini-batch without trained tokens
            takes no step and counts in ``optim/skipped``.

        Raises:
            ValueError: the shard has no sample weights, or lacks a column that the algorithm needs.
            TrainingError: the gradient is not finite; no step was taken.
        """
        if shard.sample_weight is None:
            raise ValueError("an update needs sample weights: shards(batch, plan, weights)")
        if self._trained_tokens(shard) == 0:
            return Stats({"optim/skipped": Stat.of([1.0])} if dist.get_rank() == 0 else {})
        # a copy: what Ray hands over is read-only
        weights = torch.tensor(shard.sample_weight, device=self.device)
        stats = StatSum()
        losses = torch.zeros(3, dtype=torch.float64, device=self.device)
        for packed in micro_batches(shard, self.device, share_prefixes=self.model.shares_prefixes):
            losses += self._backward(packed, shard, weights, stats)
        once = self.learner.step()
        self._add_losses(losses, stats)
        return Stats(stats.result()) + once

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

    def _trained_tokens(self, shard: BatchShard) -> int:
        count = torch.tensor(int(np.count_nonzero(shard.batch.loss_mask)), device=self.device)
        dist.all_reduce(count)
        return int(count)

    def _backward(
        self, packed: Packed, shard: BatchShard, weights: Tensor, stats: StatSum
    ) -> Tensor:
        """Forward and backward of a micro-batch.

        Returns:
            ``[3]`` float64, its part of the loss, of Σ w·c·ℓ and of Σ w·k.
        """
        logprobs, entropy = self.model(packed)
        if packed.targets.numel() == 0:
            torch.autograd.backward(logprobs.sum() * 0.0)
            return torch.zeros(3, dtype=torch.float64, device=self.device)
        inputs = policy_inputs(packed, shard, logprobs)
        algorithm = self.spec.algorithm
        outcome = self._policy_loss(inputs)
        weight = (weights[packed.sample] * packed.weight).double()
        corrected = (
            weight
            if algorithm.correction is None
            else weight * algorithm.correction(inputs).detach()
        )
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
        return torch.stack([loss, surrogate, kl]).detach()

    def _add_losses(self, losses: Tensor, stats: StatSum) -> None:
        """The loss of the mini-batch, and with a reference its parts; each counts once over all
        ranks."""
        names = ["policy/loss"]
        if self.spec.algorithm.needs.reference:
            names += ["policy/pg_loss", "policy/kl_loss"]
        for name, total in zip(names, losses, strict=False):
            stats.add(name, total, 1 if dist.get_rank() == 0 else 0)


def policy_inputs(packed: Packed, shard: BatchShard, logprobs: Tensor) -> PolicyInputs:
    """The trained tokens of a micro-batch, as a loss reads them."""
    batch = shard.batch
    rollout = packed.column(batch.rollout_logprobs)
    assert rollout is not None
    return PolicyInputs(
        logprobs=logprobs,
        rollout_logprobs=rollout,
        sampled=packed.sampled,
        old_logprobs=packed.column(batch.old_logprobs),
        ref_logprobs=packed.column(batch.ref_logprobs),
        advantages=packed.column(batch.advantages),
    )
