"""Learning role: turns gradients into optimizer steps, and keeps model and optimizer together."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import torch.distributed as dist

from agentrl.algorithms import AlgorithmSpec
from agentrl.errors import TrainingError
from agentrl.training.fsdp.checkpoint import load_checkpoint, save_checkpoint
from agentrl.training.fsdp.export import export_model
from agentrl.training.fsdp.gradients import clip_gradients
from agentrl.training.fsdp.process_group import DistSpec
from agentrl.training.fsdp.sharding import sharded_parameters
from agentrl.training.models.packed_model import ModelSpec
from agentrl.training.optim.optim_spec import OptimSpec
from agentrl.training.optim.optimizer import build_optimizers, learning_rate_factor
from agentrl.training.roles.role import Role
from agentrl.types import BatchShard, Collect, Dispatch, Stat, Stats, register


@dataclass(frozen=True, slots=True)
class LearnerSpec(ModelSpec):
    """What a role that learns is built from; parameters and optimizer are float32.

    Args:
        algorithm: whose losses it minimises.
        optim: how weights move.
        total_steps: optimizer steps after which the schedule ends; None for a constant one alone.
    """

    algorithm: AlgorithmSpec
    optim: OptimSpec = field(default_factory=OptimSpec)
    total_steps: int | None = None


class LearningRole(Role):
    """One rank of a role that learns; every method is called on all ranks alike.

    Attributes:
        name: whose weights these are, for messages.
        optimizers: of its weights.
        steps: optimizer steps taken.
    """

    name = "role"
    trains = True
    spec: LearnerSpec

    def __init__(self, spec: LearnerSpec, place: DistSpec) -> None:
        super().__init__(spec, place)
        # a schedule without an end is refused here
        learning_rate_factor(spec.optim, 0, spec.total_steps)
        self.optimizers = build_optimizers(spec.optim, self.model, self.model.head)
        self.steps = 0

    @register(Dispatch.DATA, collect=Collect.STATS)
    def update(self, shard: BatchShard) -> Stats:
        """One optimizer step on a mini-batch; the statistics of this rank."""
        raise NotImplementedError

    def step(self) -> dict[str, Stat]:
        """Clips the gradients, takes a step, and forgets them.

        Returns:
            ``optim/grad_norm`` and ``optim/lr``, once over all ranks.

        Raises:
            TrainingError: the gradient is not finite, or weights are gathered; no step was taken.
        """
        optim = self.spec.optim
        grad_norm = clip_gradients(sharded_parameters(self.model).values(), optim.clip_grad_norm)
        finite = math.isfinite(grad_norm)
        factor = learning_rate_factor(optim, self.steps, self.spec.total_steps)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * factor
            if finite:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if not finite:
            raise TrainingError(
                f"the gradient of optimizer step {self.steps} has norm {grad_norm}; no step was "
                "taken. Look for "
                "infinite logits or advantages in the batch, or lower OptimSpec.lr",
                rank=dist.get_rank(),
            )
        self.steps += 1
        if dist.get_rank() != 0:
            return {}
        return {"optim/grad_norm": Stat.of([grad_norm]), "optim/lr": Stat.of([optim.lr * factor])}

    @register(Dispatch.FIRST)
    def save(self, folder: str | Path) -> None:
        """Write weights, optimizer state and step; see ``save_checkpoint``."""
        save_checkpoint(
            Path(folder), self.model, self.optimizers, step=self.steps, purpose=self.name
        )

    @register(Dispatch.FIRST)
    def load(self, folder: str | Path) -> None:
        """Go on from a checkpoint, exactly; see ``load_checkpoint``."""
        self.steps = load_checkpoint(Path(folder), self.model, self.optimizers)

    @register(Dispatch.FIRST)
    def export(self, folder: str | Path) -> None:
        """Write a Hugging Face folder that transformers' own class loads, tokenizer included; see
        ``export_model``."""
        export_model(self.model, Path(self.spec.model_path), Path(folder), self.dtype)
