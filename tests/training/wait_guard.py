"""A guard against what makes the host wait for a device, for code that runs on a CPU or ``meta``.

On a GPU each of these would read a value, or a size that depends on values.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_BY_NAME = frozenset(
    {
        *(
            "item",
            "tolist",
            "numpy",
            "__array__",
            "__bool__",
            "__int__",
            "__float__",
            "__index__",
        ),
        *("cpu", "nonzero", "argwhere", "unique", "unique_consecutive", "masked_select"),
        *("is_nonzero", "equal", "allclose"),
    }
)
"""Names of functions and methods of torch that wait."""

_BY_OPERATOR = frozenset(
    {
        *(
            "aten::_local_scalar_dense",
            "aten::item",
            "aten::nonzero",
            "aten::masked_select",
        ),
        *("aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::equal"),
        *("aten::is_nonzero",),
    }
)
"""Operators of the dispatcher that wait; they catch what C++ calls, in the backward pass too."""

_INDEXING = frozenset(
    {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
)


class WaitError(AssertionError):
    """Something waited."""


class _Functions(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _BY_NAME and not _of_the_host(args):
            raise WaitError(f"{name} waits for the device")
        if name == "where" and len(args) + len(kwargs) == 1:
            raise WaitError("where with a condition alone waits for the device")
        if name == "repeat_interleave" and kwargs.get("output_size") is None:
            repeats = args[1] if len(args) > 1 else kwargs.get("repeats")
            if not isinstance(repeats, int):
                raise WaitError(
                    "repeat_interleave without output_size waits for the device"
                )
        if name in ("__getitem__", "__setitem__") and _has_mask(args[1]):
            raise WaitError("boolean indexing waits for the device")
        return func(*args, **kwargs)


class _Operators(TorchDispatchMode):
    """Also counts copies from the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.copies = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name
        if name in _BY_OPERATOR:
            raise WaitError(f"{name} waits for the device")
        if name == "aten::repeat_interleave" and (kwargs or {}).get("output_size") is None:
            raise WaitError("repeat_interleave without output_size waits for the device")
        if name in _INDEXING and _has_mask(tuple(args[1])):
            raise WaitError("boolean indexing waits for the device")
        out = func(*args, **(kwargs or {}))
        if name in ("aten::_to_copy", "aten::copy_"):
            source = args[1] if name == "aten::copy_" else args[0]
            if source.device.type == "cpu" and out.device.type != "cpu":
                self.copies += 1
        return out


def _has_mask(index: Any) -> bool:
    parts = index if isinstance(index, tuple | list) else (index,)
    return any(
        isinstance(one, Tensor) and one.dtype in (torch.bool, torch.uint8) for one in parts
    )


def _of_the_host(args: Any) -> bool:
    """Whether the call is the transfer's own, on memory that never was on the device."""
    caller = sys._getframe(2)
    return caller.f_globals.get("__name__") == "agentrl.training.data.transfer"


@contextmanager
def no_waits() -> Iterator[_Operators]:
    """Raises where something within waits for the device; its ``copies`` counts those to it.

    Raises:
        WaitError: with the call that waits in its traceback.
    """
    operators = _Operators()
    with operators, _Functions():
        yield operators
