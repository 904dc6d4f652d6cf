"""Becomes a module that each start of the environment's interpreter imports (by a ``.pth`` file).

The torchvision wheel is built against torch's CUDA build; beside the CPU build its import fails, because two
operators that it wants to describe are not there. They are declared right before torchvision is loaded.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_kept: list[object] = []


class DeclareOperators(importlib.abc.MetaPathFinder):
    """Finds nothing itself: it acts when torchvision is looked for, once."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            import torch

            library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
            for operator in ("nms", "qnms"):
                library.define(operator + _SIGNATURE)  # type: ignore[no-untyped-call]
            _kept.append(library)  # what it declared ends with it
        return None


sys.meta_path.insert(0, DeclareOperators())
