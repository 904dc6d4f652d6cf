"""A train backend that is no part of agentrl: a loop over samples with transformers' own model."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from agentrl.errors import ConfigError
from agentrl.training import DistSpec, ModelInfo, TrainBackend
from agentrl.training.backends.backend import (
    Loss,
    MicroBatches,
    OptimizerStep,
    RoleModel,
    StatSum,
)
from agentrl.training.data.packing import Packed
from agentrl.training.models.packed_model import ModelSpec
from agentrl.training.optim.optim_spec import OptimSpec
from agentrl.training.parallel.shards import WeightPart
from agentrl.types import Part

__all__ = [
    "Absent",
    "AnotherModel",
    "Averaging",
    "Careless",
    "Forgetful",
    "HalfBlind",
    "Late",
    "Loop",
    "LosesMoments",
    "OnlyTrains",
    "Overwrites",
    "Rounds",
    "SumsNothing",
    "Unnamed",
]


class Loop(TrainBackend):
    """A policy whose rows are computed sample by sample."""

    name = "loop"

    @classmethod
    def build(cls, spec: ModelSpec, asked: RoleModel, place: DistSpec) -> Loop:
        model = AutoModelForCausalLM.from_pretrained(spec.model_path, dtype=torch.float32)
        count = sum(one.numel() for one in model.parameters())
        made = cls(ModelInfo(count, model.config.vocab_size, 1000.0), place)
        made.model = model
        return made

    def run(self, micro_batches: MicroBatches, loss: Loss) -> StatSum:
        stats = StatSum()
        for packed in micro_batches:
            loss(packed, self._answer(packed), stats).backward()
        return stats

    def infer(
        self, micro_batches: Iterable[Packed], take: Callable[[Packed, Any], None]
    ) -> None:
        with torch.no_grad():
            for packed in micro_batches:
                take(packed, self._answer(packed))

    def _answer(self, packed: Packed) -> tuple[Tensor, Tensor]:
        samples = torch.split(packed.token_ids, [span.size for span in packed.spans])
        logits = torch.cat([self.model(one[None]).logits[0] for one in samples])
        rows = logits[packed.logit_rows] / packed.temperature[:, None]
        logprobs = rows.log_softmax(-1)
        entropy = -(logprobs.exp() * logprobs).sum(-1).detach()
        return logprobs[packed.logit_of, packed.targets], entropy[packed.logit_of]

    def optimize_by(self, spec: OptimSpec) -> None:
        options = {
            "betas": tuple(spec.betas),
            "eps": spec.eps,
            "weight_decay": spec.weight_decay,
        }
        self._lr = spec.lr
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=spec.lr, **options)

    def step(self, factor: float, clip_grad_norm: float | None) -> OptimizerStep:
        limit = math.inf if clip_grad_norm is None else clip_grad_norm
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit))
        bad = None
        if math.isfinite(norm):
            self._optimizer.param_groups[0]["lr"] = self._lr * factor
            self._optimizer.step()
        else:
            bad = tuple(
                name for name, one in self.state().items() if not one.grad.isfinite().all()
            )
        self._optimizer.zero_grad()
        return OptimizerStep(norm, bad, len(self.state()))

    def state(self) -> dict[str, torch.nn.Parameter]:
        return dict(self.model.named_parameters())

    def weights(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        for name, one in self.state().items():
            yield name, one.detach().to(dtype)

    def save(self, folder: Path, *, step: int, purpose: str, source: Path) -> None:
        folder.mkdir(parents=True)
        kept = (step, self.model.state_dict(), self._optimizer.state_dict())
        torch.save(kept, folder / "all.pt")

    def load(self, folder: Path) -> int:
        step, model, optimizer = torch.load(folder / "all.pt")
        self.model.load_state_dict(model)
        self._optimizer.load_state_dict(optimizer)
        return int(step)

    def export(self, source: Path, folder: Path) -> None:
        self.model.save_pretrained(folder)


class Forgetful(Loop):
    """Leaves its optimizer out of what it loads."""

    name = "forgetful"

    def load(self, folder: Path) -> int:
        step, model, _ = torch.load(folder / "all.pt")
        self.model.load_state_dict(model)
        return int(step)


class Careless(Loop):
    """Takes the mean of micro-batches' gradients, and steps along those that are not finite."""

    name = "careless"

    def run(self, micro_batches: MicroBatches, loss: Loss) -> StatSum:
        scale = 1 / len(micro_batches)
        return super().run(micro_batches, lambda *given: loss(*given) * scale)

    def step(self, factor: float, clip_grad_norm: float | None) -> OptimizerStep:
        self._optimizer.param_groups[0]["lr"] = self._lr * factor
        norm = torch.nn.utils.get_total_norm([one.grad for one in self.model.parameters()])
        self._optimizer.step()
        self._optimizer.zero_grad()
        return OptimizerStep(float(norm), None, len(self.state()))


class Absent(Loop):
    """Cannot be built."""

    @classmethod
    def build(cls, spec: ModelSpec, asked: RoleModel, place: DistSpec) -> Loop:
        raise ConfigError("the machine has no such device")


class AnotherModel(Loop):
    """Counts its parameters wrongly."""

    @classmethod
    def build(cls, spec: ModelSpec, asked: RoleModel, place: DistSpec) -> Loop:
        made = super().build(spec, asked, place)
        made.info = replace(made.info, num_parameters=1)
        return made


class OnlyTrains(Loop):
    """Answers for a model that it trains alone."""

    @classmethod
    def build(cls, spec: ModelSpec, asked: RoleModel, place: DistSpec) -> Loop:
        assert asked.trains, "a frozen model"
        return super().build(spec, asked, place)


class Overwrites(Loop):
    """Keeps the gradient of the last run alone."""

    def run(self, micro_batches: MicroBatches, loss: Loss) -> StatSum:
        self._optimizer.zero_grad()
        return super().run(micro_batches, loss)


class Averaging(Loop):
    """Halves the gradient of one tensor, which the norm hardly shows."""

    def run(self, micro_batches: MicroBatches, loss: Loss) -> StatSum:
        stats = super().run(micro_batches, loss)
        self.model.model.norm.weight.grad *= 0.5
        return stats


class HalfBlind(Loop):
    """Finds every token less likely than it is."""

    def _answer(self, packed: Packed) -> tuple[Tensor, Tensor]:
        logprobs, entropy = super()._answer(packed)
        return logprobs - 0.1, entropy


class Unnamed(Loop):
    """Gives tensors by names of its own."""

    def weights(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        for name, one in super().weights(dtype):
            yield f"own.{name}", one


class SumsNothing(Loop):
    """Tells parts that are not its weights."""

    def parts(self, dtype: torch.dtype) -> Iterator[WeightPart]:
        for part in super().parts(dtype):
            yield replace(part, tensor=part.tensor + 1)


class LosesMoments(Loop):
    """Does not keep the optimizer's state while its memory is given away."""

    def keep_away(self, parts: Collection[Part]) -> None:
        self._optimizer.state.clear()


class Late(Loop):
    """Writes a checkpoint when it is asked what became of it."""

    def begin_save(self, folder: Path, **given: Any) -> None:
        self._asked = (folder, given)

    def save_result(self, *, wait: bool) -> Any:
        folder, given = self._asked
        super().begin_save(folder, **given)
        return super().save_result(wait=wait)


class Rounds(Loop):
    """Exports numbers of fewer bits."""

    def export(self, source: Path, folder: Path) -> None:
        copy.deepcopy(self.model).to(torch.bfloat16).save_pretrained(folder)
