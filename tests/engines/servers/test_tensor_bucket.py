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
from agentrl.weight_sync.tensor_bytes import to_array

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
        sys.modules[MODULE], "FlattenedTensorMetadata", FlattenedTensorMetadata, raising=False
    )


@pytest.mark.usefixtures("bucket_module")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_tensor_comes_out_as_it_went_in(dtype: Any) -> None:
    tensors = {"a.weight": torch.randn(3, 5), "b.bias": torch.randn(7), "c": torch.randn(2, 2, 2)}
    bucket = pickle.loads(
        flattened_bucket([to_array(name, tensor, dtype) for name, tensor in tensors.items()])
    )
    flat = bucket["flattened_tensor"]
    assert [entry.name for entry in bucket["metadata"]] == list(tensors)
    for entry in bucket["metadata"]:
        found = flat[entry.start_idx : entry.end_idx].view(entry.dtype).reshape(entry.shape)
        assert torch.equal(found, tensors[entry.name].to(getattr(torch, dtype)))
        assert entry.numel == entry.end_idx - entry.start_idx


def test_an_array_shares_no_memory_with_the_parameter() -> None:
    parameter = torch.zeros(4)
    array = to_array("p", parameter, "float32")
    parameter.fill_(1.0)
    assert not array.data.any()
