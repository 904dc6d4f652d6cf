"""Becomes ``sgl_kernel``, SGLang's compiled GPU kernels, where there is no GPU.

SGLang 0.5.23 imports names from it at load time on some processors too, and calls none of them
there. Each name is a function that says so when it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(
            f"sgl_kernel.{name} is a GPU kernel, and this environment was built for the CPU"
        )

    return missing
