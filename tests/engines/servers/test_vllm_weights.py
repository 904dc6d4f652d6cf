"""What a vLLM server's worker reads of ours: tensors, and nothing else."""

from __future__ import annotations

import base64
import os
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentrl.engines.vllm.server_side.agentrl_weights import WeightLoader
from agentrl.weight_sync import SharedMemorySender
from agentrl.weight_sync.shared_memory import pickled


class Worker(WeightLoader):
    """A rank's worker that keeps what it loads."""

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank
        self.device = torch.device("cpu")
        self.loaded: dict[str, torch.Tensor] = {}

    def _load(self, tensors: Any) -> None:
        self.loaded = {name: tensor.clone() for name, tensor in tensors}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_worker_reads_tensors_where_they_lie(dtype: torch.dtype) -> None:
    memory = SharedMemorySender().memory(1024)
    own = memory[64:88].view(dtype)
    own.copy_(torch.arange(len(own)))
    told = base64.b64encode(pickled([("a", own), ("b", own[:2].view(2, 1))], 2)).decode()
    for rank in range(2):
        worker = Worker(rank)
        worker.load_agentrl_tensors([told], "shared")
        assert torch.equal(worker.loaded["a"], own)
        assert torch.equal(worker.loaded["b"], own[:2].view(2, 1))


class Hostile:
    def __init__(self, function: Any, *arguments: object) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


@pytest.mark.parametrize(
    ("hostile", "name"),
    [
        (Hostile(os.system, "true"), "system"),
        (Hostile(eval, "1"), "eval"),
        (Hostile(torch.load, "x"), "load"),
        (SimpleNamespace(a=1), "SimpleNamespace"),
    ],
)
def test_a_pickle_that_makes_something_else_is_refused(hostile: object, name: str) -> None:
    told = base64.b64encode(pickle.dumps([("a", hostile)])).decode()
    with pytest.raises(pickle.UnpicklingError, match=rf"{name} makes no tensor"):
        Worker().load_agentrl_tensors([told], "shared")
