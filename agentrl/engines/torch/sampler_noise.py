"""Sampler noise: a fixed perturbation of the sampler's distribution, for experiments."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class SamplerNoise:
    """Gaussian noise on logits, the same for all sequences: a function of the policy version, the
    token's position and the token.

    Args:
        scale: standard deviation, in nats.
        vocab_size: logits of a token.
        device: of the logits.
    """

    def __init__(self, scale: float, vocab_size: int, device: torch.device) -> None:
        self._scale = scale
        self._vocab_size = vocab_size
        self._device = device
        self._version = -1
        self._by_position: dict[int, Tensor] = {}  # of this version

    def at(self, positions: npt.NDArray[np.int64], version: int) -> Tensor:
        """``[n, V]`` float32 noise for tokens at ``positions`` ``[n]`` under policy ``version``."""
        if version != self._version:
            self._version = version
            self._by_position.clear()
        return torch.stack([self._drawn(int(position)) for position in positions])

    def _drawn(self, position: int) -> Tensor:
        if position not in self._by_position:
            generator = np.random.Generator(np.random.Philox(key=[self._version, position]))
            drawn = generator.standard_normal(self._vocab_size, np.float32) * self._scale
            self._by_position[position] = torch.from_numpy(drawn).to(self._device)
        return self._by_position[position]
