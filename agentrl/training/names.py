"""Names: of dtypes as settings say them, and of a wrapped model's parameters."""

from __future__ import annotations

from typing import Literal

import torch

PREFIX = "hf."
"""The wrapper's prefix of every parameter's Hugging Face name."""

DType = Literal["float32", "bfloat16", "float64"]
"""The dtype of a forward pass, and of published weights; float64 is for comparisons."""


def torch_dtype(name: DType) -> torch.dtype:
    """The dtype of that name."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype
