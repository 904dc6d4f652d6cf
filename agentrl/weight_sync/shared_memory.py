"""Weights by shared memory: servers of this machine read the tensors where the trainer's side put
them, in the host's memory or, by CUDA IPC, in that of the GPUs that they have in turn.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from agentrl.engines import Served
from agentrl.engines.servers.client import NamedTensors, NewVersion, ServerClient
from agentrl.engines.servers.update import ServerUpdate
from agentrl.engines.tensor_parallel import Shards
from agentrl.errors import MachineError
from agentrl.weight_sync.batches import BatchSender

_FOLDER = "/dev/shm"
"""Where Linux keeps the shared memory of torch, whose files it frees by itself."""
_DEVICE = 6
"""Of the arguments of ``rebuild_cuda_tensor``."""


class SharedMemorySender(BatchSender):
    """``WeightSender`` for servers of this machine: calls name tensors in memory that both sides
    see. A tensor-parallel rank is given its own part alone, where that is known.

    Args:
        served: see ``BatchSender``.
        device: of the memory.

    Attributes:
        num_writers: processes that each take as much memory as this one, at once.
    """

    sends_all = False

    def __init__(self, served: Served | None = None, device: str = "cpu") -> None:
        super().__init__(served)
        self.device = torch.device(device)
        self.num_writers = 1

    def shards(
        self, clients: Sequence[ServerClient], shapes: Mapping[str, tuple[int, ...]]
    ) -> Shards:
        """See ``WeightSender.shards``."""
        layouts = {client.shards(shapes) for client in clients}
        # Servers that are cut in different ways all read whole tensors.
        return layouts.pop() if len(layouts) == 1 else ()

    def send(
        self, update: ServerUpdate, by_rank: Sequence[NamedTensors], new: NewVersion | None
    ) -> None:
        """See ``BatchSender.send``."""
        readers = sum(server.client.num_ranks for server in update.servers) // len(by_rank)
        self.hand_over(update, [pickled(own, readers) for own in by_rank], new)

    def hand_over(
        self, update: ServerUpdate, by_rank: Sequence[bytes], new: NewVersion | None
    ) -> None:
        """Has all servers read ``pickled`` tensors, and returns when they have."""
        update.pause_servers()
        tensors = update.kind.shared(by_rank)
        update.on_all(lambda client, _: client.load_tensors(tensors, new))

    def allocate(self, size: int) -> Tensor:
        """Shared memory; that of a GPU is shared by nature.

        Raises:
            MachineError: there is not so much; the first write would otherwise end this process.
        """
        if self.device.type == "cuda":
            return torch.empty(size, dtype=torch.uint8, device=self.device)
        found = os.statvfs(_FOLDER)
        free, needed = found.f_bavail * found.f_frsize, size * self.num_writers
        if free < needed:
            raise MachineError(
                f"{_FOLDER} has {free / 2**20:.0f} MiB free, and weights need {needed / 2**20:.0f} "
                "there on their way to servers of this machine; make it larger (a container: "
                "--shm-size), or set weight_sync=http in the engine's section"
            )
        storage = torch.UntypedStorage._new_using_filename_cpu(size)
        return torch.empty(0, dtype=torch.uint8).set_(storage)


def pickled(tensors: NamedTensors, readers: int = 1) -> bytes:
    """``[(name, tensor), ...]`` as torch's multiprocessing pickles it: by where the tensors lie.

    Args:
        tensors: in one memory of ``SharedMemorySender``.
        readers: how often it is unpickled on a CPU.
    """
    if not tensors:
        return pickle.dumps([])
    first = tensors[0][1]
    make = _on_gpu if first.is_cuda else _in_file(first, readers)
    return pickle.dumps([(name, make(tensor)) for name, tensor in tensors])


@dataclass(frozen=True, slots=True, eq=False)
class _Pickled:
    """Pickled as a call; what two tensors share is made by a single one."""

    function: Callable[..., object]
    arguments: tuple[object, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.arguments


def _in_file(first: Tensor, readers: int) -> Callable[[Tensor], _Pickled]:
    """Of the ``file_system`` strategy, whose file any process may open by its name."""
    memory = first.untyped_storage()
    manager, handle, size = memory._share_filename_cpu_()
    # Whoever unpickles it maps the memory and then gives one use back, as torch's own pickles do.
    for _ in range(readers):
        memory._shared_incref()  # type: ignore[no-untyped-call]
    whole = (torch.UntypedStorage, manager, handle, size)
    untyped = _Pickled(reductions.rebuild_storage_filename, whole)
    storage = _Pickled(reductions.rebuild_typed_storage, (untyped, first.dtype))

    def make(tensor: Tensor) -> _Pickled:
        view = (tensor.storage_offset(), tensor.shape, tensor.stride(), False)
        return _Pickled(reductions.rebuild_tensor, (torch.Tensor, storage, view))

    return make


def _on_gpu(tensor: Tensor) -> _Pickled:
    """By CUDA IPC, as torch pickles it, but for the GPU: each process numbers those that it sees,
    so SGLang takes its UUID in the number's place."""
    function, arguments = reductions.reduce_tensor(tensor)  # type: ignore[no-untyped-call]
    uuid = str(torch.cuda.get_device_properties(tensor.device).uuid)
    return _Pickled(function, (*arguments[:_DEVICE], uuid, *arguments[_DEVICE + 1 :]))
