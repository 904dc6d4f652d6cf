"""A micro-batch as tensors: one packed row, and which of its tokens are trained.

Axes: T packed tokens, N trained tokens. Entry t of a column is about token t, so its logits come from position t - 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agentrl.errors import DataError
from agentrl.types import Batch, BatchShard, SegmentKind

__all__ = ["Packed", "micro_batches"]

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A packed row.

    Args:
        token_ids: ``[T]`` int64.
        positions: ``[T]`` int64, from 0 in each sample.
        lengths: tokens of each sample.
        trained: ``[N]`` int64, trained positions of the row.
        targets: ``[N]`` int64, the tokens there.
        temperature: ``[N]`` float32, the sampler's.
        weight: ``[N]`` float32, the token's weight within its sample.
        sample: ``[N]`` int64, row of the token's sample in the shard.
        sampled: ``[N]`` bool, whether the policy sampled the token.
        source: ``[N]`` int64, position of the token in the shard's columns.
    """

    token_ids: Tensor
    positions: Tensor
    lengths: tuple[int, ...]
    trained: Tensor
    targets: Tensor
    temperature: Tensor
    weight: Tensor
    sample: Tensor
    sampled: Tensor
    source: I64

    def column(self, values: npt.NDArray[np.float32] | None) -> Tensor | None:
        """``[N]`` trained entries of a ``[T_local]`` column of the shard, on the row's device."""
        return None if values is None else torch.from_numpy(values[self.source]).to(self.targets.device)


def micro_batches(shard: BatchShard, device: torch.device) -> Iterator[Packed]:
    """The micro-batches of ``shard``, in order; a filler is one token of which nothing is trained.

    Raises:
        DataError: a sample's first token is marked as trained, or a temperature is not above 0.
    """
    _check(shard.batch)
    for rows in shard.micro_batches:
        yield _pack(shard.batch, np.asarray(rows, dtype=np.int64), device)


def _pack(batch: Batch, rows: I64, device: torch.device) -> Packed:
    lengths = batch.lengths[rows].tolist() if rows.size else [1]
    if rows.size:
        source = np.concatenate([np.arange(batch.cu_seqlens[row], batch.cu_seqlens[row + 1]) for row in rows])
        token_ids = batch.token_ids[source]
        mask = batch.loss_mask[source]
        owner = np.repeat(rows, lengths)
    else:
        source = np.zeros(1, dtype=np.int64)
        token_ids, mask, owner = np.zeros(1, np.int32), np.zeros(1, np.float32), source
    trained = np.flatnonzero(mask)
    sample, source_of_trained = owner[trained], source[trained]

    def on_device(array: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return Packed(
        token_ids=on_device(token_ids.astype(np.int64)),
        positions=on_device(np.concatenate([np.arange(length) for length in lengths])),
        lengths=tuple(lengths),
        trained=on_device(trained),
        targets=on_device(token_ids[trained].astype(np.int64)),
        temperature=on_device(batch.temperature[sample]),
        weight=on_device(mask[trained]),
        sample=on_device(sample),
        sampled=on_device(batch.kind[source_of_trained] == SegmentKind.POLICY),
        source=source_of_trained,
    )


def _check(batch: Batch) -> None:
    firsts = batch.cu_seqlens[:-1]
    if firsts.size and bool(batch.loss_mask[firsts].any()):
        row = int(np.flatnonzero(batch.loss_mask[firsts])[0])
        raise DataError(
            f"a sample's first token has nothing before it and can't be trained, but loss_mask marks that of sample "
            f"{row} of its shard; a sample starts with its PROMPT"
        )
    if not bool((batch.temperature > 0).all()) or not bool(np.isfinite(batch.temperature).all()):
        bad = batch.temperature[~((batch.temperature > 0) & np.isfinite(batch.temperature))][0]
        raise DataError(
            f"batch.temperature must be above 0 and finite (logprobs are those of logits / temperature), got {bad}; "
            "a greedy sample is recorded at temperature 1"
        )
