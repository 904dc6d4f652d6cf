"""A train backend that is no part of agentrl: a loop over samples with transformers' own model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from agentrl.training import DistSpec, ModelInfo, TrainBackend
from agentrl.training.backends.backend import Loss, MicroBatches, OptimizerStep, RoleModel, StatSum
from agentrl.training.data.packing import Packed
from agentrl.training.models.packed_model import ModelSpec
from agentrl.training.optim.optim_spec import OptimSpec

__all__ = ["Careless", "Forgetful", "Loop"]


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

    def infer(self, micro_batches: Iterable[Packed], take: Callable[[Packed, Any], None]) -> None:
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
        options = {"betas": tuple(spec.betas), "eps": spec.eps, "weight_decay": spec.weight_decay}
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
            bad = tuple(name for name, one in self.state().items() if not one.grad.isfinite().all())
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
