"""Weights by tensors in HTTP calls: SGLang's flattened buckets, by value."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Sequence

import torch
from torch import Tensor

from agentrl.controller.weights.array import to_array
from agentrl.rollouts import UpdateSession
from agentrl.rollouts.sglang import ServerUpdate, WeightArray

__all__ = ["BUCKET_BYTES", "BucketSender", "flattened_bucket"]

BUCKET_BYTES = 256 * 2**20
"""Of tensors in one call; a larger tensor goes alone."""

_METADATA = b"csglang.srt.weight_sync.tensor_bucket\nFlattenedTensorMetadata\n"


class BucketSender:
    """``WeightSender`` for servers anywhere: tensors travel in the calls, whole to each rank, which cuts its part."""

    def begin(self, update: ServerUpdate) -> UpdateSession:
        """A session that sends buckets."""
        return _BucketSession(update)

    def close(self) -> None:
        """Nothing is kept."""


class _BucketSession:
    def __init__(self, update: ServerUpdate) -> None:
        self._update = update
        self._bucket: list[WeightArray] = []

    def put(self, name: str, tensor: Tensor) -> None:
        array = to_array(name, tensor, self._update.dtype)
        self._update.accept(array)
        if self._bucket and sum(held.data.size for held in self._bucket) + array.data.size > BUCKET_BYTES:
            self._send(last=False)
        self._bucket.append(array)

    def commit(self) -> None:
        self._update.require_complete()
        self._send(last=True)
        self._update.finish()

    def abort(self) -> None:
        """Torn where a bucket was sent."""
        self._update.give_up()

    def _send(self, *, last: bool) -> None:
        update = self._update
        update.open_brackets()
        payload = base64.b64encode(flattened_bucket(self._bucket)).decode()
        label, flush = (update.label, update.flush) if last else (None, False)
        update.on_all(lambda client, _: client.load_bucket(payload, label=label, flush=flush))
        self._bucket = []


def flattened_bucket(arrays: Sequence[WeightArray]) -> bytes:
    """What SGLang's ``/update_weights_from_tensor`` unpickles for ``load_format="flattened_bucket"``.

    It is ``{"flattened_tensor": uint8 tensor, "metadata": [FlattenedTensorMetadata, ...]}``. That class lives in
    SGLang, which is not installed here, so its instances are written as the pickle instructions that make them:
    the class by name (``c``), an empty tuple of arguments (``)``), the object (``\\x81``), its attributes (``b``).
    The tensor goes by value: it is read by a process of another environment, maybe on another machine.
    """
    flat = torch.cat([torch.from_numpy(array.data) for array in arrays])
    parts = [b"\x80\x03}(", _opcodes("flattened_tensor"), _opcodes(flat), _opcodes("metadata"), b"]("]
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
    """A value's pickle without its head (protocol) and its end (stop); its memo's numbers may repeat elsewhere."""
    return pickle.dumps(value, protocol=3)[2:-1]  # 2 has no bytes, 4 adds frames
