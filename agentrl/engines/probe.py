"""Weight probe: a fixed sequence whose log-probabilities two holders of the same weights agree
on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from agentrl.engines.base import ServedDtype
from agentrl.types.arrays import F32

_WIDEST: Mapping[ServedDtype, float] = {"float32": 5e-3, "bfloat16": 0.2}
"""Largest mean difference of a token's logprob, in nats, that rounding explains in any model; by
served dtype.
"""

_ROUTED: Mapping[ServedDtype, float] = {"float32": 5e-3, "bfloat16": 0.85}
"""The same in a mixture of experts: a router that is nearly indifferent turns a rounding into
another expert. Three times the .28 that a trained one differed by, of which .03 stayed when both
went through the same experts (``benchmarks/router_replay.py``'s model after its warm-up).
"""

_USUAL: Mapping[ServedDtype, float] = {"float32": 5e-3, "bfloat16": 0.03}
"""Three times what was measured of the same weights: .0097 in bfloat16, SGLang 0.5.23 on an H200
against Hugging Face.
"""

_MARGIN = 3.0

_TOKENS = 16
# a prime: no two of the tokens are equal in a vocabulary that is no multiple of it
_STEP = 7919


def probe_ids(vocab_size: int) -> tuple[int, ...]:
    """The sequence for a vocabulary, spread over all of it."""
    return tuple((3 + index * _STEP) % vocab_size for index in range(_TOKENS))


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """One holder's logprobs ``[n - 1]`` of the tokens ``[n]`` but the first; ``routed`` of a
    mixture of experts."""

    token_ids: tuple[int, ...]
    logprobs: F32
    routed: bool = False

    @property
    def size(self) -> float:
        """Mean size of a logprob, in nats; rounding grows with it."""
        return float(np.abs(self.logprobs.astype(np.float64)).mean())

    def distance(self, found: F32) -> float:
        """Mean difference of a token's logprob, in nats; infinite where one is not finite or is
        missing.
        """
        own = self.logprobs
        finite = np.isfinite(own).all() and np.isfinite(found).all()
        if own.shape != found.shape or not finite:
            return float("inf")
        return float(np.abs(own.astype(np.float64) - found).mean())

    def difference(self, found: F32, dtype: ServedDtype, allowed: float) -> str:
        """How another holder's logprobs differ by more than ``allowed``, rounding in the served
        dtype; empty where they agree.
        """
        distance = self.distance(found)
        if distance <= allowed:
            return ""
        return (
            f"its logprobs of the probe differ by {distance:.3g} on average, at most "
            f"{allowed:.3g} is rounding in {dtype}"
        )

    def rounding(self, dtype: ServedDtype, measured: float = 0.0) -> float:
        """Largest mean difference that rounding explains, in nats, between two holders whose
        difference at the same weights was ``measured``; in a mixture, whatever it was."""
        if self.routed:
            return _ROUTED[dtype]
        return min(max(_USUAL[dtype], _MARGIN * measured), _WIDEST[dtype])


class ProbeNoise:
    """Rounding between a trainer and each of its servers, as their first comparison measured it:
    their difference as a share of the logprobs' size.

    The first comparison is that of weights that checksums have just found to be the same. It may
    differ by as much as rounding does in any model; later ones by three times the first. Those of
    a mixture may all differ by as much: which of its tokens change experts is chance.
    """

    def __init__(self) -> None:
        self._shares: dict[str, float] = {}

    def difference(
        self, server: str, trainer: Probe, found: F32, dtype: ServedDtype
    ) -> str:
        """How a server's logprobs differ by more than rounding explains; empty where they agree."""
        share = self._shares.get(server)
        measured = float("inf") if share is None else share * trainer.size
        difference = trainer.difference(found, dtype, trainer.rounding(dtype, measured))
        if share is None and not difference:
            self._shares[server] = trainer.distance(found) / max(trainer.size, 1e-6)
        return difference
