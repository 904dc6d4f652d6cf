"""FSDP2 backend: parameters, gradients and optimizer sharded over ranks.

Each layer is gathered for its forward and backward pass. Layers and rows may be divided over ranks
before (``RankMesh``).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from agentrl.training.backends.backend import TrainBackend
from agentrl.training.fsdp.sharding import shard_over, without_gradients
from agentrl.training.parallel.process_group import DistSpec
from agentrl.training.parallel.rank_mesh import rank_mesh


class Fsdp2Backend(TrainBackend):
    """``train.backend: fsdp2``.

    Raises:
        ConfigError: the layout does not divide the ranks.
    """

    name: ClassVar[str] = "fsdp2"

    def _prepare(self, place: DistSpec) -> None:
        mesh = rank_mesh(place, self.sharding)
        self._left = 0
        self.model.divide(mesh)
        keep = self.sharding.mode == "grad_op"
        shard_over(self.model, mesh.data, dtype=self.dtype, keep_gathered=keep)
        self.model.fill(torch.device(place.device))

    def begin_step(self, num_micro_batches: int) -> None:
        """See ``TrainBackend.begin_step``."""
        self._left = num_micro_batches

    def backward(self, loss: Tensor) -> None:
        """See ``TrainBackend.backward``."""
        self._left -= 1
        is_last = self._left <= 0
        root = self.model
        assert isinstance(root, FSDPModule)
        if self.sharding.gradient_sync == "mini_batch":
            root.set_requires_gradient_sync(is_last)
        elif self.sharding.mode == "hybrid":
            root.set_requires_all_reduce(is_last)  # a shard of the gradient waits for it
        if self.sharding.mode == "grad_op":
            root.set_reshard_after_backward(is_last)
        super().backward(loss)

    def inference(self) -> AbstractContextManager[None]:
        """See ``TrainBackend.inference``."""
        return without_gradients(self.model)
