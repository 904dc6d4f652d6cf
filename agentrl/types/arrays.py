"""Arrays: type aliases, constructors of read-only arrays, what two sequences share, and records of
the experts that tokens went through.

Row i of a record holds the experts of the forward that read token i, in every layer that has any. A
row of the dtype's largest number throughout is none: nobody told.

Axes: n tokens, L layers with experts, k experts of a token in a layer.
"""

from __future__ import annotations

from dataclasses import dataclass
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


Number: TypeAlias = np.unsignedinteger[Any]
"""Of an expert: uint8 or uint16."""

Experts: TypeAlias = npt.NDArray[Number]
"""A record ``[n, L, k]``."""


@dataclass(frozen=True, slots=True)
class RoutingShape:
    """How a model routes its tokens.

    Args:
        layers: those with experts.
        experts: of a layer.
        top_k: experts that a token goes through in a layer.
    """

    layers: int
    experts: int
    top_k: int

    @property
    def dtype(self) -> np.dtype[Number]:
        """Of a record: a byte, unless all its numbers are taken."""
        return np.dtype(np.uint16 if self.experts > np.iinfo(np.uint8).max else np.uint8)

    def unrecorded(self, tokens: int) -> Experts:
        """``[tokens, L, k]`` of tokens whose experts nobody told."""
        rows: Experts = np.full(
            (tokens, self.layers, self.top_k), np.iinfo(self.dtype).max, self.dtype
        )
        return rows

    def fault(self, record: Experts) -> str:
        """How a record is not one of this model's; empty for one that is."""
        wanted = (self.layers, self.top_k)
        if record.ndim != 3 or record.shape[1:] != wanted or record.dtype != self.dtype:
            return (
                f"it has {record.dtype} of shape {record.shape}, and a model of {self} has "
                f"{self.dtype} [tokens, {self.layers}, {self.top_k}]"
            )
        known = record[recorded(record)]
        if known.size and int(known.max()) >= self.experts:
            return f"it names expert {int(known.max())}, and a model of {self} has {self.experts}"
        return ""

    def __str__(self) -> str:
        return f"{self.layers} layers of {self.experts} experts, {self.top_k} a token"


def recorded(record: Experts) -> Bools:
    """``[n]`` whether a token's experts are known."""
    known: Bools = (record != np.iinfo(record.dtype).max).any((1, 2))
    return known


def row_numbers(ids: I32, record: Experts) -> I32:
    """``[n]`` a number of each token: equal for equal ids with equal experts alone."""
    # of an empty batch the width is not -1
    flat = record.reshape(len(record), record.shape[1] * record.shape[2])
    parts = [ids[:, None].view(np.uint8), flat.view(np.uint8)]
    numbers: dict[bytes, int] = {}
    rows = map(np.ndarray.tobytes, np.concatenate(parts, 1))
    found = [numbers.setdefault(row, len(numbers)) for row in rows]
    return np.asarray(found, np.int32)
