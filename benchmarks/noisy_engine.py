"""Noisy engine: TorchEngine with a fixed perturbation of its sampler's distribution, for
experiments (``rollout.engine: benchmarks/noisy_engine.py:NoisyEngineSpec``).

The logits that tokens are sampled from have Gaussian noise. The reported logprobs have it, the
trainer's and the scores have not; evaluation has it too.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agentrl.engines import EnginePlace, HostedEngine, WeightSender
from agentrl.engines.torch import TorchEngineSpec
from agentrl.engines.torch.core import TorchScheduler
from agentrl.engines.torch.engine import TorchEngine
from agentrl.types.section import Weight


class NoisyEngineSpec(TorchEngineSpec):
    """Settings of ``rollout.noisy``: those of ``rollout.torch``, and the noise."""

    section: ClassVar[str] = "noisy"

    scale: Weight = 0.0
    """Standard deviation of the noise, in nats."""

    def build(self, place: EnginePlace, sender: WeightSender | None = None) -> HostedEngine:
        """See ``TorchEngineSpec.build``."""
        return NoisyEngine(place, self)


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


class NoisyScheduler(TorchScheduler):
    """Samples from noisy logits once it has its noise."""

    noise: SamplerNoise | None = None

    def advance(self, logits: Tensor, rows: npt.NDArray[np.int64], *rest: Any) -> None:
        """See ``TorchScheduler.advance``."""
        if self.noise is not None:
            positions = self.next_positions(rows)
            logits = logits + self.noise.at(positions, self._life.policy_version)
        super().advance(logits, rows, *rest)


class NoisyEngine(TorchEngine):
    """See the module. Takes what ``TorchEngine`` takes."""

    scheduler = NoisyScheduler

    def __init__(self, place: EnginePlace, spec: NoisyEngineSpec, **model: Any) -> None:
        super().__init__(place, spec, **model)
        assert isinstance(self._core, NoisyScheduler)
        self._core.noise = SamplerNoise(
            spec.scale, self._model.vocab_size, self._model.device
        )
