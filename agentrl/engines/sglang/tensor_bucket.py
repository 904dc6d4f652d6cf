"""Tensor bucket: tensors by value, as SGLang's ``/update_weights_from_tensor`` unpickles them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import torch

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


def _opcodes(value: object) -> bytes:
    """A value's pickle without its head (protocol) and its end (stop); its memo's numbers may
    repeat elsewhere.
    """
    # 2 has no bytes, 4 adds frames
    return pickle.dumps(value, protocol=3)[2:-1]
