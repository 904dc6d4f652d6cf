"""FSDP2 backend: parameters, gradients and optimizer sharded over ranks.

Each layer is gathered for its forward and backward pass.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import ClassVar

from agentrl.training.backends.backend import TrainBackend
from agentrl.training.fsdp.process_group import DistSpec, data_mesh
from agentrl.training.fsdp.sharding import shard_over, without_gradients


class Fsdp2Backend(TrainBackend):
    """``train.backend: fsdp2``."""

    name: ClassVar[str] = "fsdp2"

    def _prepare(self, place: DistSpec) -> None:
        shard_over(self.model, data_mesh(place), dtype=self.dtype)

    def inference(self) -> AbstractContextManager[None]:
        """See ``TrainBackend.inference``."""
        return without_gradients(self.model)
