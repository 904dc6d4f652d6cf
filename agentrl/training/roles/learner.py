"""Learner: turns a role's gradients into optimizer steps, and keeps model and optimizer
together."""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.distributed as dist

from agentrl.errors import TrainingError
from agentrl.training.fsdp.checkpoint import load_checkpoint, save_checkpoint
from agentrl.training.fsdp.export import export_model
from agentrl.training.fsdp.gradients import clip_gradients
from agentrl.training.fsdp.sharding import sharded_parameters
from agentrl.training.models.packed_model import PackedModel
from agentrl.training.optim.optim_spec import OptimSpec
from agentrl.training.optim.optimizer import build_optimizers, learning_rate_factor
from agentrl.training.roles.model_info import ModelInfo
from agentrl.types import BatchShard, Collect, Dispatch, Stat, Stats, register


class Learner:
    """The optimizers of a role's model; every method is called on all ranks alike.

    Args:
        spec: how weights move.
        head: its output layer, which AdamW takes whatever else moves.
        role: whose weights these are, for messages.
        total_steps: optimizer steps after which the schedule ends; None for a constant one alone.
    """

    def __init__(
        self,
        spec: OptimSpec,
        model: PackedModel,
        head: torch.nn.Module,
        role: str,
        total_steps: int | None,
    ) -> None:
        learning_rate_factor(spec, 0, total_steps)  # a schedule without an end is refused here
        self.spec = spec
        self.role = role
        self.total_steps = total_steps
        self.model = model
        self.optimizers = build_optimizers(spec, model, head)
        self.steps = 0

    def step(self) -> dict[str, Stat]:
        """Clips the gradients, takes a step, and forgets them.

        Returns:
            ``optim/grad_norm`` and ``optim/lr``, once over all ranks.

        Raises:
            TrainingError: the gradient is not finite, or weights are gathered; no step was taken.
        """
        grad_norm = clip_gradients(
            sharded_parameters(self.model).values(), self.spec.clip_grad_norm
        )
        if not math.isfinite(grad_norm):
            self._zero_grad()
            raise TrainingError(
                f"the gradient of optimizer step {self.steps} has norm {grad_norm}; no step was "
                "taken. Look for "
                "infinite logits or advantages in the batch, or lower OptimSpec.lr",
                rank=dist.get_rank(),
            )
        factor = learning_rate_factor(self.spec, self.steps, self.total_steps)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * factor
            optimizer.step()
        self._zero_grad()
        self.steps += 1
        if dist.get_rank() != 0:
            return {}
        return {
            "optim/grad_norm": Stat.of([grad_norm]),
            "optim/lr": Stat.of([self.spec.lr * factor]),
        }

    def save(self, folder: Path) -> None:
        """Write weights, optimizer state and step; see ``save_checkpoint``."""
        save_checkpoint(folder, self.model, self.optimizers, step=self.steps, purpose=self.role)

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint, exactly; see ``load_checkpoint``."""
        self.steps = load_checkpoint(folder, self.model, self.optimizers)

    def _zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)


class LearningRole:
    """What every role that learns keeps; every method is called on all ranks alike.

    Attributes:
        learner: of its weights.
        folder: the Hugging Face folder that it was loaded from.
        dtype: that it is exported in.
    """

    learner: Learner
    folder: Path
    dtype: torch.dtype

    @register(Dispatch.FIRST)
    def facts(self) -> ModelInfo:
        """Sizes of the model."""
        raise NotImplementedError

    @register(Dispatch.DATA, collect=Collect.STATS)
    def update(self, shard: BatchShard) -> Stats:
        """One optimizer step on a mini-batch; the statistics of this rank."""
        raise NotImplementedError

    @register(Dispatch.FIRST)
    def save(self, folder: str | Path) -> None:
        """Write weights, optimizer state and step; see ``save_checkpoint``."""
        self.learner.save(Path(folder))

    @register(Dispatch.FIRST)
    def load(self, folder: str | Path) -> None:
        """Go on from a checkpoint, exactly; see ``load_checkpoint``."""
        self.learner.load(Path(folder))

    @register(Dispatch.FIRST)
    def export(self, folder: str | Path) -> None:
        """Write a Hugging Face folder that transformers' own class loads, tokenizer included; see
        ``export_model``."""
        export_model(self.learner.model, self.folder, Path(folder), self.dtype)
