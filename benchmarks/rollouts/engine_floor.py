"""Engine floor: times an engine's matrix products alone, on their real operands."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["ProductRecorder"]

_PRODUCTS = (
    torch.ops.aten.linear.default,  # in inference mode it comes whole
    torch.ops.aten.matmul.default,
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.baddbmm.default,
)


def _address(tensor: Tensor) -> int:
    """Where a tensor's memory begins; 0 for one that has none: fake, or its storage was taken."""
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:
        return 0


class ProductRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Notes every matrix product of the thread in which it is entered, to be done again alone.

    Tensors that exist when it is made, an idle engine's weights and KV, are kept as the views that
    they were, so that they come from memory again; short-lived operands are replaced by one tensor
    of the same shape, strides and dtype.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        alive = (value for value in gc.get_objects() if issubclass(type(value), Tensor))
        self._lasting = {_address(tensor) for tensor in alive}
        self._stand_ins: dict[tuple[Any, ...], Tensor] = {}
        self._calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if func in _PRODUCTS:
            self._calls.append((func, tuple(self._kept(value) for value in args), options))
        return func(*args, **options)

    def leave(self) -> None:
        """Ends what ``__enter__`` began, in the same thread."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    @property
    def num_products(self) -> int:
        return len(self._calls)

    @torch.inference_mode()
    def replay(self) -> float:
        """Seconds of all products one after the other, in their order."""
        start = time.process_time()
        for function, args, options in self._calls:
            function(*args, **options)
        return time.process_time() - start

    def _kept(self, value: Any) -> Any:
        if (
            not isinstance(value, Tensor)
            or value.untyped_storage().data_ptr() in self._lasting
        ):
            return value
        key = (tuple(value.shape), value.stride(), value.dtype)
        if key not in self._stand_ins:
            self._stand_ins[key] = torch.empty_strided(
                *key[:2], dtype=value.dtype
            ).normal_()
        return self._stand_ins[key]
