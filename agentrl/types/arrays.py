"""Arrays: type aliases, constructors of read-only arrays, and what two sequences share."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

I32: TypeAlias = npt.NDArray[np.int32]
I64: TypeAlias = npt.NDArray[np.int64]
U64: TypeAlias = npt.NDArray[np.uint64]
F32: TypeAlias = npt.NDArray[np.float32]
F64: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]
AnyArray: TypeAlias = npt.NDArray[np.generic]
Floats: TypeAlias = npt.NDArray[np.floating[Any]]
"""What a model says of tokens: float32, or float64 of a float64 model."""


def frozen_ints(values: Any) -> I32:
    """A read-only int32 array ``[n]`` of ``values``, copied only if necessary."""
    return _frozen(values, np.int32)


def frozen_floats(values: Any) -> F32:
    """A read-only float32 array ``[n]`` of ``values``."""
    return _frozen(values, np.float32)


def common_prefix(one: I32, other: I32) -> int:
    """How many leading ids two sequences share."""
    length = min(one.size, other.size)
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if differ.size else length


def _frozen(values: Any, dtype: Any) -> npt.NDArray[Any]:
    array = np.asarray(values, dtype=dtype)
    if array.ndim != 1:
        raise ValueError(f"expected a one-dimensional array, got shape {array.shape}")
    if array.flags.writeable:
        array = array.copy() if array.base is not None or array is values else array
        array.setflags(write=False)
    return array
