"""Learning role: turns gradients into optimizer steps, and keeps model and optimizer together."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from agentrl.algorithms import AlgorithmSpec
from agentrl.errors import TrainingError
from agentrl.training.fsdp.checkpoint import load_checkpoint, save_checkpoint
from agentrl.training.fsdp.export import export_model
from agentrl.training.fsdp.gradients import clip_gradients
from agentrl.training.fsdp.process_group import DistSpec
from agentrl.training.fsdp.sharding import sharded_parameters
from agentrl.training.models.packed_model import PREFIX, ModelSpec
from agentrl.training.optim.optim_spec import OptimSpec
from agentrl.training.optim.optimizer import build_optimizers, learning_rate_factor
from agentrl.training.roles.role import Role
from agentrl.types import BatchShard, Collect, Dispatch, Stat, Stats, register

logger = logging.getLogger(__name__)


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

        A gradient that is not finite is only forgotten, by all ranks alike, since they agree on its
        norm: weights, optimizer and schedule stay as they are.

        Returns:
            ``optim/grad_norm`` and ``optim/lr``, once over all ranks; in place of the latter
            ``optim/not_finite`` where no step was taken for the gradient.

        Raises:
            TrainingError: weights are gathered; no step was taken.
        """
        optim = self.spec.optim
        parameters = sharded_parameters(self.model)
        grad_norm = clip_gradients(parameters.values(), optim.clip_grad_norm)
        if not math.isfinite(grad_norm):
            self._tell_not_finite(parameters, grad_norm)
            for optimizer in self.optimizers:
                optimizer.zero_grad(set_to_none=True)
            if dist.get_rank() != 0:
                return {}
            return {"optim/grad_norm": Stat.of([grad_norm]), "optim/not_finite": Stat.of([1.0])}
        factor = learning_rate_factor(optim, self.steps, self.spec.total_steps)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        if dist.get_rank() != 0:
            return {}
        return {"optim/grad_norm": Stat.of([grad_norm]), "optim/lr": Stat.of([optim.lr * factor])}

    def _tell_not_finite(self, parameters: Mapping[str, nn.Parameter], grad_norm: float) -> None:
        """Names the parameters whose gradients are not finite on any rank, by rank 0."""
        flags = []
        for parameter in parameters.values():
            grad = parameter.grad
            own = grad.to_local() if isinstance(grad, DTensor) else grad
            flags.append(own is not None and not bool(torch.isfinite(own).all()))
        anywhere = torch.tensor(flags, dtype=torch.int32, device=self.device)
        dist.all_reduce(anywhere, op=dist.ReduceOp.MAX)
        if dist.get_rank() != 0:
            return
        names = [
            name.removeprefix(PREFIX)
            for name, flag in zip(parameters, anywhere.tolist(), strict=True)
            if flag
        ]
        # finite gradients may have a norm beyond float32
        where = (
            f"{len(names)} of {len(parameters)} parameters, the first {names[0]}"
            if names
            else ("none, but their norm is beyond float32")
        )
        fields = {"step": self.steps, "norm": str(grad_norm), "parameters": names[:20]}
        logger.warning(
            "%s skips optimizer step %d: its gradient has norm %s; not finite are those of %s",
            self.name,
            self.steps,
            grad_norm,
            where,
            extra={"event": "gradient_not_finite", "role": self.name, **fields},
        )

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


def check_tokens(values: object, tokens: Tensor, whose: str) -> None:
    """Refuses numbers that arithmetic would spread over tokens in silence.

    Args:
        values: what a function of the algorithm returned.
        tokens: ``[N]``, a number of each trained token.
        whose: the function's name for errors.

    Raises:
        TrainingError: the shapes differ.
    """
    if not isinstance(values, Tensor) or values.shape != tokens.shape:
        found = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else repr(values)
        raise TrainingError(
            f"{whose} must return one number for each of the {tokens.numel()} trained tokens of a "
            f"micro-batch, got {found}; leave their sum to the algorithm's reduction"
        )
