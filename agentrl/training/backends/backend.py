"""Train backend: a role's model and optimizers on one rank; all that a role does with them.

- Roles compute what goes in and what a loss makes of what comes out. How parameters lie, and what
  crosses ranks, is the backend's.
- Every method is called on all ranks alike.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from agentrl.training.backends.residency import Residency
from agentrl.training.data.packing import Packed
from agentrl.training.fsdp.checkpoint import (
    CheckpointWriter,
    SaveResult,
    load_checkpoint,
    save_checkpoint,
)
from agentrl.training.fsdp.export import export_model
from agentrl.training.fsdp.gradients import clip_gradients
from agentrl.training.fsdp.sharding import sharded_parameters
from agentrl.training.fsdp.weights import checksums, full_weights
from agentrl.training.models.names import PREFIX
from agentrl.training.models.packed_model import PackedModel
from agentrl.training.optim.optim_spec import OptimSpec
from agentrl.training.optim.optimizer import build_optimizers
from agentrl.training.parallel.process_group import DistSpec
from agentrl.training.parallel.rank_mesh import FULL, Sharding


@dataclass(frozen=True, slots=True)
class StepResult:
    """What became of a gradient, equal on every rank.

    Args:
        grad_norm: before clipping.
        not_finite: Hugging Face names of the parameters whose gradients are not finite; None where
            the step was taken.
        num_parameters: tensors, of which those are some.
    """

    grad_norm: float
    not_finite: tuple[str, ...] | None
    num_parameters: int


class TrainBackend(ABC):
    """One rank of a model.

    Args:
        model: as loaded, equal on every rank.
        place: this rank's.
        dtype: of the forward pass; parameters, gradients and optimizer are at least float32.
        sharding: over ranks, where the backend shards.

    Attributes:
        model: the module; its parameters are read through ``state`` alone.
        optimizers: none before ``optimize_by``.
        is_first: whether this is rank 0.
        residency: what of it lies on the device.
    """

    name: ClassVar[str]
    """Of ``train.backend``."""

    def __init__(
        self,
        model: PackedModel,
        place: DistSpec,
        dtype: torch.dtype,
        sharding: Sharding = FULL,
    ) -> None:
        self.model = model
        self.dtype = dtype
        self.sharding = sharding
        self.is_first = place.rank == 0
        self._is_first_of_data = place.is_first_of_data
        self.optimizers: list[torch.optim.Optimizer] = []
        self._writer = CheckpointWriter()
        self._prepare(place)
        self.residency = Residency(
            {"params": self._parameters, "optimizer": self._moments},
            is_frozen=not any(one.requires_grad for one in model.parameters()),
        )

    @abstractmethod
    def _prepare(self, place: DistSpec) -> None:
        """Brings ``model`` into the form in which it runs and is kept."""

    def begin_step(self, num_micro_batches: int) -> None:  # noqa: B027 - none has to prepare
        """Tells of how many backward passes the next gradient consists; unknown, each may be the
        last."""

    def forward(self, packed: Packed) -> Any:
        """What the model returns for a packed row, with gradient; ``backward`` must follow."""
        return self.model(packed)

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of a scalar to the parameters', SUMMED over ranks."""
        torch.autograd.backward(loss)

    @abstractmethod
    def inference(self) -> AbstractContextManager[None]:
        """Runs forward passes that no backward follows; after one that raises, the role can be
        neither saved nor published."""

    def optimize_by(self, spec: OptimSpec) -> None:
        """Makes the optimizers."""
        self.optimizers = build_optimizers(spec, self.model, self.model.head)

    def step(self, factor: float, clip_grad_norm: float | None) -> StepResult:
        """Clips the gradients, takes an optimizer step and forgets them. A gradient that is not
        finite is only forgotten, by all ranks alike, since they agree on its norm.

        Args:
            factor: of each group's ``base_lr``.
            clip_grad_norm: largest norm; None clips nothing.

        Raises:
            TrainingError: weights are gathered; no step was taken.
        """
        state = self.state()
        norm = clip_gradients(state.values(), clip_grad_norm)
        taken = math.isfinite(norm)
        result = StepResult(norm, None if taken else self._not_finite(state), len(state))
        if taken:
            with self.residency.holding("optimizer"):
                self._move(factor)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        return result

    def _move(self, factor: float) -> None:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * factor
            optimizer.step()

    def state(self) -> Mapping[str, nn.Parameter]:
        """The parameters by name, as the optimizer updates them: sharded, never gathered.

        Raises:
            TrainingError: weights are gathered.
        """
        return sharded_parameters(self.model)

    def weights(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Whole tensors by the names of the model's folder; see ``full_weights``."""
        return full_weights(self.model, dtype)

    def checksums(self, dtype: torch.dtype) -> dict[str, int]:
        """Of what ``weights`` yields; see ``checksums``."""
        return checksums(self.model, dtype)

    def save(self, folder: Path, *, step: int, purpose: str, source: Path) -> None:
        """Writes weights, optimizer state and step; see ``save_checkpoint``."""
        save_checkpoint(
            folder, self.model, self.optimizers, step=step, purpose=purpose, source=source
        )

    def begin_save(self, folder: Path, *, step: int, purpose: str, source: Path) -> None:
        """Copies weights, optimizer state and step, and writes them beside what follows; see
        ``CheckpointWriter``."""
        self._writer.begin(
            folder, self.model, self.optimizers, step=step, purpose=purpose, source=source
        )

    def save_result(self, *, wait: bool) -> SaveResult | None:
        """What became of ``begin_save``; None while it is being written."""
        return self._writer.result(wait=wait)

    def load(self, folder: Path) -> int:
        """Goes on from a checkpoint of any backend; see ``load_checkpoint``."""
        return load_checkpoint(folder, self.model, self.optimizers)

    def export(self, source: Path, folder: Path) -> None:
        """Writes a Hugging Face folder; see ``export_model``."""
        export_model(self.model, source, folder, self.dtype)

    def sum_over_ranks(self, tensor: Tensor) -> Tensor:
        """``tensor``, summed in place over data coordinates, on all ranks: those that share a
        coordinate have equal ones, of which one counts."""
        if not self._is_first_of_data:
            tensor.zero_()
        dist.all_reduce(tensor)
        return tensor

    @property
    def model_device(self) -> torch.device:
        """Where the parameters lie."""
        return next(iter(self.model.parameters())).device

    def _parameters(self) -> Iterator[Tensor]:
        return (parameter.detach() for parameter in self.state().values())

    def _moments(self) -> Iterator[Tensor]:
        for optimizer in self.optimizers:
            for values in optimizer.state.values():
                yield from (one for one in values.values() if isinstance(one, Tensor))

    def _not_finite(self, state: Mapping[str, nn.Parameter]) -> tuple[str, ...]:
        """The parameters whose gradients are not finite on any rank."""
        flags = []
        for parameter in state.values():
            grad = parameter.grad
            own = grad.to_local() if isinstance(grad, DTensor) else grad
            flags.append(own is not None and not bool(torch.isfinite(own).all()))
        anywhere = torch.tensor(flags, dtype=torch.int32, device=self.model_device)
        dist.all_reduce(anywhere, op=dist.ReduceOp.MAX)
        found = zip(state, anywhere.tolist(), strict=True)
        return tuple(name.removeprefix(PREFIX) for name, flag in found if flag)
