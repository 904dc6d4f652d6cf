"""Update statistics: sums over micro-batches on the device, read once at the update's end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from agentrl.algorithms import PolicyInputs, TokenStat
from agentrl.types import Stat

_Part: TypeAlias = tuple[Tensor, int, tuple[Tensor, ...]]
"""A sum, a count, and the extremes of what was summed."""


class StatSum:
    """Sums and counts by metric name, kept on the device so that no micro-batch waits for it."""

    def __init__(self) -> None:
        self._parts: defaultdict[str, list[_Part]] = defaultdict(list)

    def add(self, name: str, total: Tensor, count: int, values: Tensor | None = None) -> None:
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
                min=float(torch.stack(extremes).min()) if extremes else float("inf"),
                max=float(torch.stack(extremes).max()) if extremes else float("-inf"),
            )
        return result
