"""Stand-in for ``torch.cuda``: megatron-core allocates on the CPU, so that it runs here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._device import _device_constructors

CPU = torch.device("cpu")
_FACTORIES = ("empty", "ones", "tensor", "zeros")


def _on_cpu(make: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(make)
    def made(*args: Any, device: Any = None, **keywords: Any) -> Any:
        return make(*args, device=CPU if device == "cuda" else device, **keywords)

    return made


def _type(one: torch.Tensor, *args: Any, **keywords: Any) -> Any:
    """Megatron's optimizer asks for the names of a GPU's tensors."""
    found = _TYPE(one, *args, **keywords)
    return found.replace("torch.", "torch.cuda.") if isinstance(found, str) else found


_TYPE = torch.Tensor.type


@contextmanager
def cuda_stand_in() -> Iterator[None]:
    """Within, a process without a GPU answers megatron-core as if the CPU were one."""
    state = torch.get_rng_state
    # ``with torch.device(...)`` remembers the factories when it is first used: those of torch
    _device_constructors()
    with ExitStack() as held:

        def replace(where: Any, name: str, by: Any) -> None:
            held.enter_context(patch.object(where, name, by))

        for name in _FACTORIES:
            replace(torch, name, _on_cpu(getattr(torch, name)))
        replace(torch.Tensor, "cuda", lambda one, *_, **__: one)
        replace(torch.Tensor, "type", _type)
        replace(torch.cuda, "current_device", lambda: CPU)
        replace(torch.cuda, "synchronize", lambda *_: None)
        # what a layer that is computed again draws from: nothing, since there is no dropout
        from megatron.core.tensor_parallel import random

        replace(random, "_get_cuda_rng_state", lambda *_, **__: state())
        replace(random, "_set_cuda_rng_state", lambda *_, **__: None)
        yield
