"""Weights by shared memory: servers of this machine read the tensors where the trainer's side put
them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from agentrl.engines.servers.client import NewVersion, ServerClient
from agentrl.engines.servers.update import ServerUpdate
from agentrl.engines.tensor_parallel import Shards
from agentrl.engines.weights import WeightArray
from agentrl.errors import MachineError
from agentrl.weight_sync.batches import BatchSender

_FOLDER = "/dev/shm"
"""Where Linux keeps the shared memory of torch, whose files it frees by itself."""


class SharedMemorySender(BatchSender):
    """``WeightSender`` for servers of this machine: calls name tensors in memory that both sides
    see. A tensor-parallel rank is given its own part alone, where that is known.
    """

    sends_all = False

    def shards(
        self, clients: Sequence[ServerClient], shapes: Mapping[str, tuple[int, ...]]
    ) -> Shards:
        """See ``WeightSender.shards``."""
        layouts = {client.shards(shapes) for client in clients}
        # Servers that are cut in different ways all read whole tensors.
        return layouts.pop() if len(layouts) == 1 else ()

    def send(
        self,
        update: ServerUpdate,
        by_rank: Sequence[Sequence[WeightArray]],
        new: NewVersion | None,
    ) -> None:
        """See ``BatchSender.send``."""
        update.pause_servers()
        readers = sum(server.client.num_ranks for server in update.servers) // len(by_rank)
        tensors = update.kind.shared(self._memory.untyped_storage(), by_rank, readers)
        update.on_all(lambda client, _: client.load_tensors(tensors, new))

    def allocate(self, size: int) -> Tensor:
        """Shared memory.

        Raises:
            MachineError: there is not so much; the first write would otherwise end this process.
        """
        found = os.statvfs(_FOLDER)
        free = found.f_bavail * found.f_frsize
        if free < size:
            raise MachineError(
                f"{_FOLDER} has {free / 2**20:.0f} MiB free, and weights need {size / 2**20:.0f} "
                "there on their way to servers of this machine; make it larger (a container: "
                "--shm-size), or set weight_sync=http in the engine's section"
            )
        storage = torch.UntypedStorage._new_using_filename_cpu(size)
        return torch.empty(0, dtype=torch.uint8).set_(storage)
