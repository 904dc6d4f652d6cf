"""Weight probe: a fixed sequence whose log-probabilities two holders of the same weights agree
on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agentrl.engines.base import ServedDtype

_TOLERANCE: Mapping[ServedDtype, float] = {"float32": 5e-3, "bfloat16": 0.2}
"""Largest mean difference of a token's logprob, in nats, that rounding explains; by served
dtype.
"""

_TOKENS = 16
_STEP = 7919  # a prime: no two of the tokens are equal in a vocabulary that is no multiple of it


def probe_ids(vocab_size: int) -> tuple[int, ...]:
    """The sequence for a vocabulary, spread over all of it."""
    return tuple((3 + index * _STEP) % vocab_size for index in range(_TOKENS))


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """One holder's logprobs ``[n - 1]`` of the tokens ``[n]`` but the first."""

    token_ids: tuple[int, ...]
    logprobs: npt.NDArray[np.float32]

    def difference(self, found: npt.NDArray[np.float32], dtype: ServedDtype) -> str:
        """How another holder's logprobs differ by more than rounding in the served dtype explains;
        empty where they agree. They differ also where one is not finite or misses some.
        """
        own = self.logprobs
        distance = float("inf")
        if own.shape == found.shape and np.isfinite(own).all() and np.isfinite(found).all():
            distance = float(np.abs(own.astype(np.float64) - found).mean())
        if distance <= _TOLERANCE[dtype]:
            return ""
        return (
            f"its logprobs of the probe differ by {distance:.3g} on average, at most "
            f"{_TOLERANCE[dtype]:g} is rounding in {dtype}"
        )
