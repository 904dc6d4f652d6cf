"""In float64: transformers' forward without its steps in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class InFloat64(TorchFunctionMode):
    """Transformers computes norms and softmaxes in float32, also of a float64 model."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        of_float64 = args and isinstance(args[0], Tensor) and args[0].dtype == torch.float64
        if of_float64 and func is Tensor.float:
            return args[0]
        if of_float64 and func is Tensor.to and args[1:2] == (torch.float32,):
            return args[0]
        if of_float64 and kwargs.get("dtype") == torch.float32:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)
