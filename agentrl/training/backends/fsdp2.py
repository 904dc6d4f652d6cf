"""FSDP2 backend: parameters, gradients and optimizer sharded over ranks.

Each layer is gathered for its forward and backward pass. Layers and rows may be divided over ranks
before (``RankMesh``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar

import torch
from torch.distributed.fsdp import FSDPModule

from agentrl.training.backends.packed_backend import PackedBackend
from agentrl.training.fsdp.sharding import shard_over, without_gradients
from agentrl.training.parallel.process_group import DistSpec, expert_mesh, rank_mesh


class Fsdp2Backend(PackedBackend):
    """``train.backend: fsdp2``.

    Raises:
        ConfigError: the layout does not divide the ranks.
    """

    name: ClassVar[str] = "fsdp2"

    def _prepare(self, place: DistSpec) -> None:
        mesh = rank_mesh(place, self.sharding)
        experts = None
        if self.model.routing is not None and max(place.tp, self.sharding.ep) > 1:
            experts = expert_mesh(place, self.sharding)
        self.model.divide(mesh, experts)
        self.model.attach_adapters()
        shard_over(
            self.model,
            mesh.data,
            None if experts is None else experts.data,
            dtype=self.dtype,
            keep_gathered=self.sharding.mode == "grad_op",
        )
        # Last, so that each rank reads its own shards alone.
        self.model.fill(torch.device(place.device))

    @contextmanager
    def _micro_batch(self, *, is_last: bool) -> Iterator[None]:
        root = self.model
        assert isinstance(root, FSDPModule)
        if self.sharding.gradient_sync == "mini_batch":
            root.set_requires_gradient_sync(is_last)
        elif self.sharding.mode == "hybrid":
            # a shard of the gradient waits for it
            root.set_requires_all_reduce(is_last)
        if self.sharding.mode == "grad_op":
            # After the last one the optimizer moves the shards; a copy that is kept would be stale.
            root.set_reshard_after_backward(is_last)
        yield

    def _inference(self) -> AbstractContextManager[None]:
        return without_gradients(self.model)
