"""Becomes ``sgl_kernel``, SGLang's compiled GPU kernels, where there is no GPU.

SGLang 0.5.23 imports names from it at load time on some processors too, and calls none of them there. Each name is
a function that says so when it is called. Models of Qwen3.5, which those that see are loaded with, also look some
operators up; they are declared, without a body.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import torch

_OPERATORS = (
    "fused_sigmoid_mul_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
)
_library = torch.library.Library("sgl_kernel", "FRAGMENT")  # type: ignore[no-untyped-call]
for _operator in _OPERATORS:
    _library.define(f"{_operator}() -> ()")  # type: ignore[no-untyped-call]


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} is a GPU kernel, and this environment was built for the CPU")

    return missing
