"""Packing: a micro-batch as one packed row of tensors, with its trained tokens.

- If the attention allows, a row holds the common prefix of a group's samples once, trained tokens
  included, and then each sample's own tokens. Logprobs and gradients are the same for less work.
- The logits of a token come from the position before it.

Axes: T packed tokens, R positions whose logits are computed, N trained tokens, M samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agentrl.errors import DataError
from agentrl.training.data.prefix_tree import ROOT, Span, shared_spans
from agentrl.types import Batch, BatchShard, SegmentKind

I64 = npt.NDArray[np.int64]

_NOTHING: I64 = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A packed row.

    Args:
        token_ids: ``[T]`` int64.
        positions: ``[T]`` int64, from 0 in each sample.
        spans: the spans of the row in order, each with the span that it attends to.
        logit_rows: ``[R]`` int64, increasing: the positions whose logits are computed, once for
            each temperature.
        temperature: ``[R]`` float32, the sampler's.
        logit_of: ``[N]`` int64, increasing: the entry of ``logit_rows`` that predicts the trained
            token.
        targets: ``[N]`` int64, the trained tokens.
        weight: ``[N]`` float32, the token's weight within its sample; 0 for one that an auxiliary
            loss alone reads.
        sample: ``[N]`` int64, row of the token's sample in the shard.
        sampled: ``[N]`` bool, whether the policy sampled the token.
        source: ``[N]`` int64, position of the token in the shard's columns.
        rows: ``[M]`` int64, the samples by their rows in the shard, in the order of the packed row.
        ends: ``[M]`` int64, the position of each sample's last token.
    """

    token_ids: Tensor
    positions: Tensor
    spans: tuple[Span, ...]
    logit_rows: Tensor
    temperature: Tensor
    logit_of: Tensor
    targets: Tensor
    weight: Tensor
    sample: Tensor
    sampled: Tensor
    source: I64
    rows: I64
    ends: Tensor

    def column(self, values: npt.NDArray[np.float32] | None) -> Tensor | None:
        """``[N]`` trained entries of a ``[T_local]`` column of the shard, on the row's device."""
        if values is None:
            return None
        return torch.from_numpy(values[self.source]).to(self.targets.device)


def micro_batches(
    shard: BatchShard, device: torch.device, *, share_prefixes: bool
) -> Iterator[Packed]:
    """The micro-batches of ``shard``, in order; a filler is one untrained token.

    Args:
        shard: this rank's samples.
        device: of the tensors.
        share_prefixes: whether the attention supports spans with parents.

    Raises:
        DataError: a sample's first token is marked as trained, or a temperature is not above 0.
    """
    wanted = shard.wanted()
    _check(shard.batch, wanted)
    for rows in shard.micro_batches:
        yield _pack(shard.batch, wanted, np.asarray(rows, dtype=np.int64), device, share_prefixes)


def _pack(
    batch: Batch,
    wanted: npt.NDArray[np.bool_],
    rows: I64,
    device: torch.device,
    share_prefixes: bool,
) -> Packed:
    def on_device(array: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    starts = batch.cu_seqlens.astype(np.int64)
    spans: list[Span] = []
    samples: list[int] = []
    paths: list[list[int]] = []  # of each sample through the spans
    groups = batch.group[batch.trajectory[rows]] if share_prefixes else np.arange(rows.size)
    for group in dict.fromkeys(groups.tolist()):
        members = rows[groups == group]
        own, through = shared_spans(
            [batch.token_ids[starts[row] : starts[row + 1]] for row in members]
        )
        paths += [[len(spans) + index for index in path] for path in through]
        samples += members.tolist()
        already = len(spans)
        spans += [s if s.parent == ROOT else s._replace(parent=s.parent + already) for s in own]
    if not spans:  # a filler; the shard itself may be empty
        spans = [Span(ROOT, 0, 1)]
    span_ends = np.cumsum([span.size for span in spans])
    token_ids = np.zeros(span_ends[-1], dtype=np.int64)
    positions = np.zeros_like(token_ids)
    ends = np.zeros(len(samples), dtype=np.int64)
    # for each trained token of each sample: its entry in the columns, its sample, and the position
    # before it
    parts: list[tuple[I64, I64, I64]] = [(_NOTHING, _NOTHING, _NOTHING)]
    for number, (row, path) in enumerate(zip(samples, paths, strict=True)):
        places = np.concatenate(
            [np.arange(span_ends[index] - spans[index].size, span_ends[index]) for index in path]
        )
        start = starts[row]
        token_ids[places] = batch.token_ids[start : start + places.size]
        positions[places] = np.arange(places.size)
        ends[number] = places[-1]
        trained = np.flatnonzero(wanted[start : start + places.size])
        parts.append((start + trained, np.full_like(trained, row), places[trained - 1]))
    source, sample, before = map(np.concatenate, zip(*parts, strict=True))
    temperature = batch.temperature[sample]
    # a row of logits serves every token that it foretells at one temperature
    asked = (before << 32) | temperature.astype(np.float32).view(np.uint32).astype(np.int64)
    _, first, logit_of = np.unique(asked, return_index=True, return_inverse=True)
    order = np.argsort(logit_of, kind="stable")
    source = source[order]
    return Packed(
        token_ids=on_device(token_ids),
        positions=on_device(positions),
        spans=tuple(spans),
        logit_rows=on_device(before[first]),
        temperature=on_device(temperature[first]),
        logit_of=on_device(logit_of[order]),
        targets=on_device(batch.token_ids[source].astype(np.int64)),
        weight=on_device(batch.loss_mask[source]),
        sample=on_device(sample[order]),
        sampled=on_device(batch.kind[source] == SegmentKind.POLICY),
        source=source,
        rows=np.asarray(samples, dtype=np.int64),
        ends=on_device(ends),
    )


def _check(batch: Batch, wanted: npt.NDArray[np.bool_]) -> None:
    marked = np.flatnonzero(wanted[batch.cu_seqlens[:-1]])
    if marked.size:
        raise DataError(
            f"a sample's first token has nothing before it and can't be trained, but loss_mask "
            f"marks that of sample {marked[0]} of its shard; a sample starts with its PROMPT"
        )
    bad = batch.temperature[~((batch.temperature > 0) & np.isfinite(batch.temperature))]
    if bad.size:
        raise DataError(
            f"batch.temperature must be above 0 and finite (logprobs are those of logits / "
            f"temperature), got {bad[0]}; a greedy sample is recorded at temperature 1"
        )
