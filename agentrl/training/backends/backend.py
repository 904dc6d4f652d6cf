"""Train backend: the contract of what holds and runs a role's model on one rank, and its results.

- Roles compute what goes in and what a loss makes of what comes out. How parameters lie, in which
  order passes run, and what crosses ranks, is the backend's.
- Every method is called on all ranks alike.
- A class of one's own plugs in by ``train.backend: module:NAME``; ``check_backend`` holds it to
  this contract.

Axes: N wanted tokens and M samples of a micro-batch (``Packed``).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn

from agentrl.algorithms import PolicyInputs, TokenStat
from agentrl.errors import ConfigError, StoreError
from agentrl.training.data.packing import I64, Packed, counted
from agentrl.training.models.packed_model import ModelSpec
from agentrl.training.optim.optim_spec import OptimSpec
from agentrl.training.parallel.process_group import DistSpec
from agentrl.training.parallel.shards import WeightPart
from agentrl.training.save_result import SaveResult
from agentrl.types import Part, RoutingShape, Stat
from agentrl.types.batch import Media

_Part: TypeAlias = tuple[Tensor, int, tuple[Tensor, ...]]
"""A sum, a count, and the extremes of what was summed."""


class StatSum:
    """Sums and counts by metric name, kept on the device so that no micro-batch waits for it."""

    def __init__(self) -> None:
        self._parts: defaultdict[str, list[_Part]] = defaultdict(list)

    def add(
        self, name: str, total: Tensor, count: int, values: Tensor | None = None
    ) -> None:
        """Add a detached sum over ``count`` observations, and the observations themselves where
        their extremes matter."""
        extremes = () if values is None else (values.min(), values.max())
        self._parts[name].append((total.double(), count, extremes))

    def add_values(self, name: str, values: Tensor) -> None:
        """Add observations, of which there may be none."""
        if values.numel():
            flat = values.detach()
            self.add(name, flat.sum(dtype=torch.float64), flat.numel(), flat)

    def add_all(self, stats: Mapping[str, TokenStat]) -> None:
        """Add what a function of the algorithm returned."""
        for name, stat in stats.items():
            self.add(name, stat.sum, stat.count)

    def add_mismatch(
        self, inputs: PolicyInputs, fresh: Tensor, stale: Tensor, *, old_is_sampled: bool
    ) -> None:
        """How far the trainer's logprobs are from the sampler's, on sampled tokens.

        The trainer's are π_old, or the current policy's where π_old is the sampler's.
        ``mismatch/k3_kl`` estimates KL(sampler, trainer) from the sampler's own tokens.

        The same numbers stand under ``mismatch/engine`` for tokens of the very version that is
        trained, which tell what the engine computes otherwise, and under ``mismatch/stale`` for
        those of older versions, which the weights' age moved too. Without such tokens there is none
        of the name.

        Args:
            inputs: the trained tokens.
            fresh, stale: int64, those of them that the policy sampled, by the version.
            old_is_sampled: whether π_old is the sampler's.
        """
        own = inputs.logprobs.detach() if old_is_sampled else inputs.old_logprobs
        difference = own - inputs.rollout_logprobs
        for name, rows in (
            ("mismatch", torch.cat([fresh, stale])),
            ("mismatch/engine", fresh),
            ("mismatch/stale", stale),
        ):
            found = difference[rows]
            self.add_values(f"{name}/logp_abs", found.abs())
            # k3 of http://joschu.net/blog/kl-approx.html. Where the logprobs hardly differ, exp - 1
            # would lose all digits of it.
            self.add_values(f"{name}/k3_kl", torch.expm1(found) - found)

    def result(self) -> dict[str, Stat]:
        """Plain numbers."""
        result = {}
        for name, parts in self._parts.items():
            totals = [total for total, _, _ in parts]
            extremes = [extreme for _, _, both in parts for extreme in both]
            result[name] = Stat(
                sum=float(sum(totals[1:], totals[0])),
                count=float(sum(count for _, count, _ in parts)),
                # An infinity changes nothing where ranks' statistics are merged.
                min=float(torch.stack(extremes).min()) if extremes else float("inf"),
                max=float(torch.stack(extremes).max()) if extremes else float("-inf"),
            )
        return result


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the driver must know of a model.

    Args:
        num_parameters: in all, tied ones once.
        vocab_size: of the output layer, padding included.
        length_scale: ℓ of the partition's cost n + n²/ℓ, tokens.
        max_tokens: longest sequence that it has positions for, and longer ones are refused; None
            where it sets no bound.
        shares_prefixes: whether it computes the common beginning of a micro-batch's samples once.
        routing: of a mixture whose tokens go through the experts that they are given
            (``Packed.experts``).
        num_active: parameters that compute a token, with its experts alone; None is all.
    """

    num_parameters: int
    vocab_size: int
    length_scale: float
    max_tokens: int | None = None
    shares_prefixes: bool = False
    routing: RoutingShape | None = None
    num_active: int | None = None


@dataclass(frozen=True, slots=True)
class RoleModel:
    """What a role asks of its model.

    Args:
        kind: what it answers for a packed row: ``policy`` ``[max(N, 1)]`` logprobs of the wanted
            tokens at their temperature and entropies in nats, ``values`` ``[max(N, 1)]`` values
            before the wanted tokens and ``[max(M, 1)]`` behind the samples, ``scores``
            ``[max(M, 1)]`` of the samples; all in at least float32.
        trains: whether its weights move.
        head_seed: of the weights of a new head, which a causal model's folder lacks; None refuses
            such a folder.
        entropy_gradient: whether a loss reads the gradient of entropies.
    """

    kind: Literal["policy", "values", "scores"]
    trains: bool = False
    head_seed: int | None = None
    entropy_gradient: bool = False


class MicroBatches(Protocol):
    """Rows that are packed one at a time, and their number."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Packed]: ...


Loss: TypeAlias = Callable[[Packed, Any, StatSum], Tensor]
"""The scalar whose gradient a micro-batch gives, of its row and the model's answer; it adds what it
tells of them to the statistics. It is called once for each micro-batch, of a filler too, whose
scalar is 0 times the answer."""


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """What became of a gradient, equal on every rank.

    Args:
        grad_norm: before clipping.
        not_finite: names of the parameters whose gradients are not finite; None where the step was
            taken.
        num_parameters: tensors, of which those are some.
    """

    grad_norm: float
    not_finite: tuple[str, ...] | None
    num_parameters: int


class TrainBackend(ABC):
    """One rank of a model.

    Args:
        info: of the model.
        place: this rank's.

    Attributes:
        info: of the model.
        is_first: whether this rank tells what is told once: the first of those that answer.
        model: what computes, for a look at it.
        positions_of: counts the positions of a sample with images, for ``PackedMicroBatches``.
    """

    name: ClassVar[str]
    """Of ``train.backend``, for messages."""
    has_adapters: ClassVar[bool] = False
    """Whether ``build`` heeds ``ModelSpec.lora``."""

    model: Any
    positions_of: Callable[[int, Media], I64] = staticmethod(counted)

    def __init__(self, info: ModelInfo, place: DistSpec) -> None:
        self.info = info
        self.is_first = (
            place.is_first_of_data and place.rank < place.tp * place.sp * place.pp
        )
        self._is_first_of_data = place.is_first_of_data
        self._saved: SaveResult | None = None

    @classmethod
    @abstractmethod
    def build(cls, spec: ModelSpec, asked: RoleModel, place: DistSpec) -> TrainBackend:
        """Loads the model of a folder.

        Raises:
            DataError: the folder holds no model of the kind.
            ConfigError: the backend cannot run it so.
        """

    @abstractmethod
    def run(self, micro_batches: MicroBatches, loss: Loss) -> StatSum:
        """Adds the gradients of the micro-batches' losses to the parameters', SUMMED over ranks.

        Returns:
            What the losses told.
        """

    @abstractmethod
    def infer(
        self, micro_batches: Iterable[Packed], take: Callable[[Packed, Any], None]
    ) -> None:
        """Gives ``take`` the model's answers, without gradients; after one that raises, the role
        can be neither saved nor published."""

    @abstractmethod
    def optimize_by(self, spec: OptimSpec) -> None:
        """Makes the optimizers."""

    @abstractmethod
    def step(self, factor: float, clip_grad_norm: float | None) -> OptimizerStep:
        """Clips the gradients, takes an optimizer step and forgets them. A gradient that is not
        finite is only forgotten, by all ranks alike, since they agree on its norm.

        Args:
            factor: of the specification's learning rates.
            clip_grad_norm: largest norm; None clips nothing.
        """

    @abstractmethod
    def state(self) -> Mapping[str, nn.Parameter]:
        """The parameters by name, as the optimizer updates them."""

    @abstractmethod
    def weights(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Whole tensors as the model's folder has them, by their names there; every rank runs the
        iteration to its end. A tensor may share memory with the parameter."""

    def parts(self, dtype: torch.dtype) -> Iterator[WeightPart]:
        """This rank's parts of what ``weights`` yields: each number of it is one rank's, of which
        others may have a copy. Names that all ranks have come in one order. Every rank runs the
        iteration to its end."""
        for name, whole in self.weights(dtype):
            is_copy = not self.is_first
            yield WeightPart(name, tuple(whole.shape), (0,) * whole.ndim, whole, is_copy)

    @abstractmethod
    def save(self, folder: Path, *, step: int, purpose: str, source: Path) -> None:
        """Writes a checkpoint: weights, optimizer state and step.

        Args:
            folder: a new one.
            step: optimizer steps taken.
            purpose: whose weights these are, for messages.
            source: the folder that the model was loaded from.

        Raises:
            StoreError: a rank cannot write.
        """

    def begin_save(self, folder: Path, *, step: int, purpose: str, source: Path) -> None:
        """Takes a checkpoint of the state as it is; a backend may write it beside what follows."""
        start = time.monotonic()
        error = None
        try:
            self.save(folder, step=step, purpose=purpose, source=source)
        except StoreError as failed:
            error = failed
        self._saved = SaveResult(time.monotonic() - start, error)

    def save_result(self, *, wait: bool) -> SaveResult | None:
        """What became of ``begin_save``; None while it is being written."""
        return self._saved

    @abstractmethod
    def load(self, folder: Path) -> int:
        """Goes on from a checkpoint, exactly.

        Returns:
            The optimizer steps taken.
        """

    @abstractmethod
    def export(self, source: Path, folder: Path) -> None:
        """Writes a Hugging Face folder, with what lies beside the weights of ``source``."""

    def without_adapter(self) -> AbstractContextManager[None]:
        """The frozen weights alone answer within.

        Raises:
            ConfigError: the model has no adapter.
        """
        raise ConfigError(
            "the model of this role has no adapter to switch off, so that it is no reference; set "
            "LoraSpec.rank, or build a Reference"
        )

    def holding(self, *needs: Part) -> AbstractContextManager[None]:
        """Has parts of the role on the device within."""
        return nullcontext()

    def keep_away(self, parts: Collection[Part]) -> None:
        """From now on these parts wait in the host's memory, but while a method needs them; an
        engine has the device.

        Raises:
            ConfigError: the backend cannot.
        """
        if parts:
            raise ConfigError(
                f"rollout.sleep=true needs a backend that gives its device's memory back, and "
                f"TrainConfig.backend={self.name!r} has no keep_away(); set rollout.sleep=false"
            )

    def sum_over_ranks(self, tensor: Tensor) -> Tensor:
        """``tensor``, summed in place over data coordinates, on all ranks: those that share a
        coordinate have equal ones, of which one counts."""
        if not self._is_first_of_data:
            tensor.zero_()
        dist.all_reduce(tensor)
        return tensor
