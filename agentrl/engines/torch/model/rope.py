"""Frequencies of the rotary embedding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ROPE_TYPES: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}
"""Scalings, and the numbers that each needs, in the order of ``Rope``."""


@dataclass(frozen=True, slots=True)
class Rope:
    """A rotary embedding (arXiv:2104.09864), with the scalings that leave its amplitude as it is.

    Args:
        kind: ``default``, ``linear`` (arXiv:2306.15595) or ``llama3`` (by wavelength, as Llama 3.1
            was trained).
        theta: the base.
        factor: by which ``linear`` stretches all positions, and ``llama3`` those of long
            wavelengths.
        low, high: ``llama3`` stretches wavelengths above original / low, leaves those below
            original / high, and goes smoothly between.
        original: positions before the stretching.
    """

    kind: str = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    low: float = 1.0
    high: float = 1.0
    original: float = 0.0

    @classmethod
    def from_hugging_face(cls, config: Mapping[str, Any]) -> Rope:
        """Reads both spellings of config.json (``rope_parameters`` since transformers 5).

        Raises:
            KeyError: a scaling without one of its numbers.
        """
        values = config.get("rope_parameters") or config.get("rope_scaling") or {}
        kind = str(values.get("rope_type", values.get("type", "default")))
        theta = float(values.get("rope_theta", config.get("rope_theta", 10_000.0)))
        return cls(kind, theta, *(float(values[name]) for name in ROPE_TYPES[kind]))

    def frequencies(self, head_dim: int) -> Tensor:
        """``[head_dim / 2]`` float32 radians a position."""
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        plain = 1.0 / self.theta**exponents
        if self.kind == "default":
            return plain
        if self.kind == "linear":
            return plain / self.factor
        wavelengths = 2 * math.pi / plain
        share = ((self.original / wavelengths - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
        return (1 - share) * plain / self.factor + share * plain
