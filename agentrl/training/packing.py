"""A micro-batch as tensors: one packed row, and which of its tokens are trained.

Siblings begin with the same prompt. Where the attention allows, a row holds what the samples of a group share before
their first trained token once, and each sample's own tokens behind it: the same logprobs and gradients for less work.

Axes: T packed tokens, N trained tokens. Entry t of a column is about token t, so its logits come from the token before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agentrl.errors import DataError
from agentrl.types import Batch, BatchShard, SegmentKind

__all__ = ["Family", "Packed", "micro_batches"]

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Family:
    """Samples that lie together in a row: ``shared`` tokens that all of them begin with, then ``own`` of each.

    One sample alone shares nothing; several share something.
    """

    shared: int
    own: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        return self.shared + sum(self.own)


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A packed row.

    Args:
        token_ids: ``[T]`` int64.
        positions: ``[T]`` int64, from 0 in each sample.
        families: what attends to what, in the order of the row.
        logit_rows: ``[N]`` int64, the positions whose logits foretell the trained tokens.
        targets: ``[N]`` int64, the trained tokens.
        temperature: ``[N]`` float32, the sampler's.
        weight: ``[N]`` float32, the token's weight within its sample.
        sample: ``[N]`` int64, row of the token's sample in the shard.
        sampled: ``[N]`` bool, whether the policy sampled the token.
        source: ``[N]`` int64, position of the token in the shard's columns.
        rows: ``[M]`` int64, the row's samples by their place in the shard, in the order of the row.
        ends: ``[M]`` int64, the position of each sample's last token.
    """

    token_ids: Tensor
    positions: Tensor
    families: tuple[Family, ...]
    logit_rows: Tensor
    targets: Tensor
    temperature: Tensor
    weight: Tensor
    sample: Tensor
    sampled: Tensor
    source: I64
    rows: I64
    ends: Tensor

    def column(self, values: npt.NDArray[np.float32] | None) -> Tensor | None:
        """``[N]`` trained entries of a ``[T_local]`` column of the shard, on the row's device."""
        return None if values is None else torch.from_numpy(values[self.source]).to(self.targets.device)


def micro_batches(shard: BatchShard, device: torch.device, *, share_prompts: bool) -> Iterator[Packed]:
    """The micro-batches of ``shard``, in order; a filler is one token of which nothing is trained.

    Args:
        shard: this rank's samples.
        device: of the tensors.
        share_prompts: whether the attention knows families of several samples.

    Raises:
        DataError: a sample's first token is marked as trained, or a temperature is not above 0.
    """
    _check(shard.batch)
    for rows in shard.micro_batches:
        yield _pack(shard.batch, np.asarray(rows, dtype=np.int64), device, share_prompts)


def _pack(batch: Batch, rows: I64, device: torch.device, share_prompts: bool) -> Packed:
    families: list[Family] = []
    pieces: list[_Piece] = []
    order: list[int] = []
    ends: list[int] = []
    length = 0
    for members, shared in _siblings(batch, rows) if share_prompts else [(rows[[i]], 0) for i in range(rows.size)]:
        if shared:
            pieces.append(_piece(batch, members[0], 0, shared, length - 1, length))
        length += shared
        last_shared = length - 1
        sizes = batch.lengths[members].tolist()
        for member, size in zip(members, sizes, strict=True):
            pieces.append(_piece(batch, member, shared, size, last_shared, length))
            length += size - shared
            order.append(int(member))
            ends.append(length - 1)
        families.append(Family(shared, tuple(size - shared for size in sizes)))
    if not pieces:
        families = [Family(0, (1,))]  # a filler; the shard itself may be empty
        nothing = np.zeros(0, np.int64)
        filler = np.zeros((4, 1), np.int64)
        return _tensors(batch, families, filler, np.zeros(1, np.int32), nothing, nothing, nothing, device)
    columns = np.concatenate(pieces, axis=1)
    trained = np.flatnonzero(batch.loss_mask[columns[0]])
    row_ids, last = np.asarray(order, dtype=np.int64), np.asarray(ends, dtype=np.int64)
    return _tensors(batch, families, columns, batch.token_ids[columns[0]], trained, row_ids, last, device)


def _siblings(batch: Batch, rows: I64) -> Iterator[tuple[I64, int]]:
    """The samples of a micro-batch, those of a group that begin alike together, with how many tokens they share."""
    groups = batch.group[batch.trajectory[rows]]
    for group in dict.fromkeys(groups.tolist()):
        members = rows[groups == group]
        shared = _shared_tokens(batch, members) if members.size > 1 else 0
        if shared:
            yield members, shared
        else:
            yield from ((members[[index]], 0) for index in range(members.size))


def _shared_tokens(batch: Batch, members: I64) -> int:
    """How many tokens all ``members`` begin with, before the first trained one and the last one of any."""
    starts = batch.cu_seqlens[members].astype(np.int64)
    limits = []
    for start, size in zip(starts, batch.lengths[members], strict=True):
        trained = np.flatnonzero(batch.loss_mask[start : start + size])
        limits.append(int(trained[0]) if trained.size else int(size) - 1)
    heads = batch.token_ids[starts[:, None] + np.arange(min(limits))]
    differ = np.flatnonzero((heads != heads[0]).any(axis=0))
    return int(differ[0]) if differ.size else min(limits)


_Piece = I64
"""``[4, n]``: source in the shard, position in the sample, sample, and the row's position before each token."""


def _piece(batch: Batch, sample: int, first: int, end: int, before_first: int, place: int) -> _Piece:
    """Tokens ``first`` .. ``end - 1`` of a sample, put at ``place`` of the row behind position ``before_first``."""
    position = np.arange(first, end, dtype=np.int64)
    before = place - 1 + np.arange(end - first, dtype=np.int64)
    before[0] = max(before_first, 0)
    return np.stack([batch.cu_seqlens[sample] + position, position, np.full_like(position, sample), before])


def _tensors(
    batch: Batch,
    families: Sequence[Family],
    columns: I64,
    token_ids: npt.NDArray[np.int32],
    trained: I64,
    rows: I64,
    ends: I64,
    device: torch.device,
) -> Packed:
    source, positions, owner, before = columns
    source_of_trained, sample = source[trained], owner[trained]

    def on_device(array: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return Packed(
        token_ids=on_device(token_ids.astype(np.int64)),
        positions=on_device(positions),
        families=tuple(families),
        logit_rows=on_device(before[trained]),
        targets=on_device(token_ids[trained].astype(np.int64)),
        temperature=on_device(batch.temperature[sample]),
        weight=on_device(batch.loss_mask[source_of_trained]),
        sample=on_device(sample),
        sampled=on_device(batch.kind[source_of_trained] == SegmentKind.POLICY),
        source=source_of_trained,
        rows=rows,
        ends=on_device(ends),
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
