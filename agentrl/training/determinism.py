"""Determinism: selects kernels with reproducible results."""

from __future__ import annotations

import os

import torch


def use_deterministic_kernels() -> None:
    """Refuses kernels whose result depends on timing, and seeds torch, in this process.

    Call it before the first CUDA kernel, because cuBLAS reads its workspace setting once.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(0)
