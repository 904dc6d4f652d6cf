"""Tensor bucket: tensors as SGLang's ``/update_weights_from_tensor`` unpickles them, by value or by
their place in shared memory.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing import reductions

from agentrl.engines.weights import WeightArray

_METADATA = b"csglang.srt.weight_sync.tensor_bucket\nFlattenedTensorMetadata\n"


def flattened_bucket(arrays: Sequence[WeightArray]) -> bytes:
    """What SGLang's ``/update_weights_from_tensor`` unpickles for
    ``load_format="flattened_bucket"``.

    It is ``{"flattened_tensor": uint8 tensor, "metadata": [FlattenedTensorMetadata, ...]}``. That
    class lives in SGLang, which is not installed here, so its instances are written as the pickle
    instructions that make them: the class by name (``c``), an empty tuple of arguments (``)``), the
    object (``\\x81``), its attributes (``b``). The tensor goes by value: it is read by a process of
    another environment, maybe on another machine.
    """
    # The last one may be empty: it gives the weights their version.
    empty = torch.empty(0, dtype=torch.uint8)
    flat = torch.cat([empty, *(torch.from_numpy(array.data) for array in arrays)])
    parts = [
        b"\x80\x03}(",
        _opcodes("flattened_tensor"),
        _opcodes(flat),
        _opcodes("metadata"),
        b"](",
    ]
    start = 0
    for array in arrays:
        end = start + array.data.size
        attributes = {
            "name": array.name,
            "shape": torch.Size(array.shape),
            "dtype": getattr(torch, array.dtype),
            "start_idx": start,
            "end_idx": end,
            "numel": end - start,
        }
        parts += [_METADATA, b")\x81", _opcodes(attributes), b"b"]
        start = end
    return b"".join([*parts, b"eu."])


def shared_tensors(
    memory: torch.UntypedStorage, arrays: Sequence[WeightArray], readers: int
) -> bytes:
    """What SGLang unpickles as ``[(name, tensor), ...]``: views of memory that both sides map.

    Args:
        memory: of the ``file_system`` strategy, whose file any process may open by its name.
        arrays: in that memory.
        readers: how often it is unpickled.
    """
    if not arrays:
        return pickle.dumps([])
    dtype: torch.dtype = getattr(torch, arrays[0].dtype)
    manager, handle, size = memory._share_filename_cpu_()
    # Whoever unpickles it maps the memory and then gives one use back, as torch's own pickles do.
    for _ in range(readers):
        memory._shared_incref()  # type: ignore[no-untyped-call]
    whole = (torch.UntypedStorage, manager, handle, size)
    untyped = _Pickled(reductions.rebuild_storage_filename, whole)
    storage = _Pickled(reductions.rebuild_typed_storage, (untyped, dtype))
    tensors = []
    for array in arrays:
        first = (array.data.ctypes.data - memory.data_ptr()) // dtype.itemsize
        strides = torch.empty(array.shape, device="meta").stride()
        view = (first, torch.Size(array.shape), strides, False)
        tensor = _Pickled(reductions.rebuild_tensor, (torch.Tensor, storage, view))
        tensors.append((array.name, tensor))
    return pickle.dumps(tensors)


@dataclass(frozen=True, slots=True, eq=False)
class _Pickled:
    """Pickled as a call; what two tensors share is made by a single one."""

    function: Callable[..., object]
    arguments: tuple[object, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.arguments


def _opcodes(value: object) -> bytes:
    """A value's pickle without its head (protocol) and its end (stop); its memo's numbers may
    repeat elsewhere.
    """
    # 2 has no bytes, 4 adds frames
    return pickle.dumps(value, protocol=3)[2:-1]
