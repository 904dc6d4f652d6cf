"""The pickled bucket is what SGLang's own classes unpickle."""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch

from agentrl.engines.sglang.tensor_bucket import flattened_bucket
from agentrl.engines.weights import WeightArray

MODULE = "sglang.srt.weight_sync.tensor_bucket"


@dataclass
class FlattenedTensorMetadata:
    """The fields of SGLang's class of this name."""

    name: str
    shape: Any
    dtype: Any
    start_idx: int
    end_idx: int
    numel: int


@pytest.fixture
def bucket_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module under SGLang's name, as only a server's environment has it."""
    parts = MODULE.split(".")
    for count in range(1, len(parts) + 1):
        monkeypatch.setitem(
            sys.modules, ".".join(parts[:count]), ModuleType(".".join(parts[:count]))
        )
    monkeypatch.setattr(
        sys.modules[MODULE],
        "FlattenedTensorMetadata",
        FlattenedTensorMetadata,
        raising=False,
    )


def arrays(tensors: dict[str, torch.Tensor], memory: torch.Tensor) -> list[WeightArray]:
    """Tensors in this memory, with a gap between them."""
    found, start = [], 64
    for name, tensor in tensors.items():
        data = memory[start:][: tensor.nbytes]
        data.view(tensor.dtype).copy_(tensor.flatten())
        dtype: Any = str(tensor.dtype).removeprefix("torch.")
        found.append(WeightArray(name, dtype, tuple(tensor.shape), data.numpy()))
        start += 256
    return found


def tensors_of(dtype: str) -> dict[str, torch.Tensor]:
    shapes = {"a.weight": (3, 5), "b.bias": (7,), "c": (2, 2, 2)}
    return {
        name: torch.randn(shape, dtype=getattr(torch, dtype))
        for name, shape in shapes.items()
    }


@pytest.mark.usefixtures("bucket_module")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_tensor_comes_out_as_it_went_in(dtype: str) -> None:
    tensors = tensors_of(dtype)
    memory = torch.empty(1024, dtype=torch.uint8)
    bucket = pickle.loads(flattened_bucket(arrays(tensors, memory)))
    flat = bucket["flattened_tensor"]
    assert [entry.name for entry in bucket["metadata"]] == list(tensors)
    for entry in bucket["metadata"]:
        found = flat[entry.start_idx : entry.end_idx].view(entry.dtype).reshape(entry.shape)
        assert torch.equal(found, tensors[entry.name])
        assert entry.numel == entry.end_idx - entry.start_idx
