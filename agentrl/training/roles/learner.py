"""Learning role: turns gradients into optimizer steps, and keeps model and optimizer together."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from agentrl.algorithms import AlgorithmSpec
from agentrl.errors import TrainingError
from agentrl.training.backends.backend import Loss, OptimizerStep, RoleModel
from agentrl.training.data.packing import Extras
from agentrl.training.models.packed_model import ModelSpec
from agentrl.training.names import DType, torch_dtype
from agentrl.training.optim.optim_spec import OptimSpec
from agentrl.training.optim.optimizer import learning_rate_factor
from agentrl.training.parallel.process_group import DistSpec
from agentrl.training.parallel.shards import WeightPart, whole_checksums
from agentrl.training.roles.role import Role
from agentrl.training.save_result import SaveResult
from agentrl.types import BatchShard, Collect, Dispatch, Stat, Stats, register
from agentrl.types.arrays import Bools

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
        steps: optimizer steps taken.
    """

    name = "role"
    trains = True
    spec: LearnerSpec

    def __init__(self, spec: LearnerSpec, place: DistSpec) -> None:
        super().__init__(spec, place)
        # a schedule without an end is refused here
        learning_rate_factor(spec.optim, 0, spec.total_steps)
        self.backend.optimize_by(spec.optim)
        self.steps = 0

    def asked(self) -> RoleModel:
        """See ``Role.asked``."""
        return replace(super().asked(), head_seed=getattr(self.spec, "head_seed", None))

    def learn(
        self,
        shard: BatchShard,
        wanted: Bools,
        loss: Loss,
        *,
        sums: Sequence[str] = (),
        extras: Extras | None = None,
    ) -> Stats:
        """One optimizer step on a mini-batch.

        Args:
            shard: of this rank.
            wanted: what the loss reads of it; where no rank has any, no step is taken.
            loss: of a micro-batch.
            sums: statistics that the loss adds without a count: sums over all ranks, counted once.
            extras: see ``packed``.

        Returns:
            This rank's statistics, to be merged over ranks.

        Raises:
            ValueError: the shard has no sample weights.
            TrainingError: weights are gathered; no step was taken.
        """
        if shard.sample_weight is None:
            raise ValueError("an update needs sample weights: shards(batch, plan, weights)")
        first = self.backend.is_first
        count = torch.tensor(int(np.count_nonzero(wanted)), device=self.device)
        # The ranks decide together: one with tokens would wait in the backward pass for the others.
        if not int(self.backend.sum_over_ranks(count)):
            return Stats({"optim/skipped": Stat.of([1.0])} if first else {})
        stats = self.backend.run(self.packed(shard, extras), loss)
        once = self.step()
        for name in sums:
            stats.add(name, torch.zeros((), device=self.device), int(first))
        # read from the device, which is then done
        return Stats(stats.result()) + once

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
        factor = learning_rate_factor(optim, self.steps, self.spec.total_steps)
        result = self.backend.step(factor, optim.clip_grad_norm)
        stats = {"optim/grad_norm": Stat.of([result.grad_norm])}
        if result.not_finite is None:
            self.steps += 1
            stats["optim/lr"] = Stat.of([optim.lr * factor])
        else:
            self._tell_not_finite(result.not_finite, result)
            stats["optim/not_finite"] = Stat.of([1.0])
        return stats if self.backend.is_first else {}

    def _tell_not_finite(self, names: Sequence[str], result: OptimizerStep) -> None:
        """Names the parameters whose gradients are not finite on any rank, by rank 0."""
        if not self.backend.is_first:
            return
        # finite gradients may have a norm beyond float32
        where = (
            f"{len(names)} of {result.num_parameters} parameters, the first {names[0]}"
            if names
            else ("none, but their norm is beyond float32")
        )
        norm = str(result.grad_norm)
        fields = {"step": self.steps, "norm": norm, "parameters": list(names[:20])}
        logger.warning(
            "%s skips optimizer step %d: its gradient has norm %s; not finite are those of %s",
            self.name,
            self.steps,
            result.grad_norm,
            where,
            extra={"event": "gradient_not_finite", "role": self.name, **fields},
        )

    @register(Dispatch.FIRST, needs=("params", "optimizer"))
    def save(self, folder: str | Path) -> None:
        """Write weights, optimizer state and step; see ``TrainBackend.save``."""
        source = Path(self.spec.model_path)
        self.backend.save(Path(folder), step=self.steps, purpose=self.name, source=source)

    @register(Dispatch.FIRST, needs=("params", "optimizer"))
    def begin_save(self, folder: str | Path) -> None:
        """Write weights, optimizer state and step as they are now, beside what follows; see
        ``TrainBackend.begin_save``."""
        source = Path(self.spec.model_path)
        self.backend.begin_save(
            Path(folder), step=self.steps, purpose=self.name, source=source
        )

    @register(Dispatch.FIRST, needs=())
    def save_result(self, wait: bool) -> SaveResult | None:
        """What became of ``begin_save``; None while it is being written and nobody waits."""
        return self.backend.save_result(wait=wait)

    @register(Dispatch.FIRST, needs=("params", "optimizer"))
    def load(self, folder: str | Path) -> None:
        """Go on from a checkpoint, exactly; see ``TrainBackend.load``."""
        self.steps = self.backend.load(Path(folder))

    def parts(self, dtype: DType | None = None) -> Iterator[WeightPart]:
        """This rank's parts of the model, by every rank to its end; see ``TrainBackend.parts``.

        Args:
            dtype: as served; None is the spec's own.
        """
        with self.backend.holding("params"):
            yield from self.backend.parts(
                self.dtype if dtype is None else torch_dtype(dtype)
            )

    @register(Dispatch.FIRST)
    def checksum(self, dtype: DType | None = None) -> dict[str, int]:
        """Checksums by name of the whole tensors in ``dtype`` (docs/engines.md)."""
        return whole_checksums(self.parts(dtype))

    @register(Dispatch.FIRST)
    def export(self, folder: str | Path) -> None:
        """Write a Hugging Face folder that transformers' own class loads, tokenizer included; see
        ``TrainBackend.export``."""
        self.backend.export(Path(self.spec.model_path), Path(folder))


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
        found = (
            f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else repr(values)
        )
        raise TrainingError(
            f"{whose} must return one number for each of the {tokens.numel()} trained tokens of a "
            f"micro-batch, got {found}; leave their sum to the algorithm's reduction"
        )
