"""Becomes a module that each start of the environment's interpreter imports (by a ``.pth`` file).

The torchvision wheel is built against torch's CUDA build; beside the CPU build its import fails,
because two operators that it wants to describe are not there. SGLang's Qwen3.5, which is loaded
with every model that sees, looks up four of its GPU kernels. All are declared, without a body,
right before torchvision is loaded, which comes first.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_OPERATORS = {
    "torchvision": (f"nms{_BOXES}", f"qnms{_BOXES}"),
    "sgl_kernel": (
        "fused_sigmoid_mul_cpu() -> ()",
        "fused_qk_gemma_rmsnorm_cpu() -> ()",
        "fused_qk_gemma_rmsnorm_with_gate_cpu() -> ()",
        "fused_qkvzba_split_reshape_cat_contiguous_cpu() -> ()",
    ),
}
_kept: list[object] = []


class DeclareOperators(importlib.abc.MetaPathFinder):
    """Finds nothing itself: it acts when torchvision is looked for, once."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            import torch

            for namespace, operators in _OPERATORS.items():
                library = torch.library.Library(namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
                for operator in operators:
                    library.define(operator)  # type: ignore[no-untyped-call]
                # what it declared ends with it
                _kept.append(library)
        return None


sys.meta_path.insert(0, DeclareOperators())
