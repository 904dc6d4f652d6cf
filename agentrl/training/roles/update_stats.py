"""Update statistics: sums over micro-batches on the device, read once at the update's end."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from agentrl.algorithms import PolicyInputs
from agentrl.types import Stat


@dataclass(slots=True)
class _Entry:
    total: Tensor
    count: int
    extremes: tuple[Tensor, Tensor] | None = None


@dataclass(slots=True)
class StatSum:
    """Sums and counts by metric name, kept on the device so that no micro-batch waits for it."""

    _entries: dict[str, _Entry] = field(default_factory=dict)

    def add(
        self, name: str, total: Tensor, count: int, extremes: tuple[Tensor, Tensor] | None = None
    ) -> None:
        """Add a detached sum over ``count`` observations, and their least and greatest where
        known."""
        entry = self._entries.get(name)
        if entry is None:
            self._entries[name] = _Entry(total.double(), count, extremes)
            return
        entry.total = entry.total + total
        entry.count += count
        if entry.extremes is not None and extremes is not None:
            entry.extremes = (
                torch.minimum(entry.extremes[0], extremes[0]),
                torch.maximum(entry.extremes[1], extremes[1]),
            )

    def add_values(self, name: str, values: Tensor) -> None:
        """Add observations, of which there may be none."""
        if values.numel():
            flat = values.detach()
            self.add(name, flat.sum(dtype=torch.float64), flat.numel(), (flat.min(), flat.max()))

    def add_mismatch(self, inputs: PolicyInputs) -> None:
        """How far the trainer's logprobs are from the sampler's, on sampled tokens.

        The trainer's are π_old where it was recomputed, else the current policy's before this step.
        ``mismatch/k3_kl`` estimates KL(sampler, trainer) from the sampler's own tokens.
        """
        own = inputs.logprobs.detach() if inputs.old_logprobs is None else inputs.old_logprobs
        difference = (own - inputs.rollout_logprobs)[inputs.sampled]
        self.add_values("mismatch/logp_abs", difference.abs())
        self.add_values("mismatch/k3_kl", torch.expm1(difference) - difference)

    def result(self) -> dict[str, Stat]:
        """Plain numbers."""
        result = {}
        for name, entry in self._entries.items():
            low, high = entry.extremes or (None, None)
            result[name] = Stat(
                sum=float(entry.total),
                count=float(entry.count),
                min=float("inf") if low is None else float(low),
                max=float("-inf") if high is None else float(high),
            )
        return result
