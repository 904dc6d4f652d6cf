"""Weight probe: a fixed sequence whose log-probabilities two holders of the same weights agree
on.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from agentrl.engines.base import ServedDtype

PROBE_TOLERANCE: Mapping[ServedDtype, float] = {"float32": 5e-3, "bfloat16": 0.2}
"""Largest mean difference of a token's logprob, in nats, that rounding explains; by served
dtype.
"""

_TOKENS = 16
_STEP = 7919  # a prime: no two of the tokens are equal in a vocabulary that is no multiple of it


def probe_ids(vocab_size: int) -> tuple[int, ...]:
    """The sequence for a vocabulary, spread over all of it."""
    return tuple((3 + index * _STEP) % vocab_size for index in range(_TOKENS))


def probe_distance(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> float:
    """Mean difference of two holders' logprobs ``[n]``; infinite where one is not finite or misses
    some.
    """
    if one.shape != other.shape or not (np.isfinite(one).all() and np.isfinite(other).all()):
        return float("inf")
    return float(np.abs(one.astype(np.float64) - other).mean())
