"""Packing: a micro-batch as one packed row of tensors, with its trained tokens.

- If the attention allows, a row holds the common prefix of a group's samples once, trained tokens
  included, and then each sample's own tokens. Logprobs and gradients are the same for less work.
- The logits of a token come from the position before it.
- Under sequence parallelism the row is cut into equal slices, one a rank. What a position foretells
  is settled before, so that a token whose position before it lies in another slice is not lost.

Axes: T packed tokens, R positions whose logits are computed, N wanted and K trained tokens, M
samples, L tokens of a slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agentrl.errors import DataError
from agentrl.training.data.prefix_tree import ROOT, Span, shared_spans
from agentrl.training.data.transfer import to_device
from agentrl.types import Batch, BatchShard, SegmentKind

I64 = npt.NDArray[np.int64]

_NOTHING: I64 = np.zeros(0, dtype=np.int64)


class Cut(NamedTuple):
    """How a packed row is cut over ranks, and this rank's part."""

    parts: int = 1
    part: int = 0


WHOLE = Cut()
"""Each rank computes whole rows."""


Extras: TypeAlias = Callable[[I64], Mapping[str, npt.NDArray[Any]]]
"""What a role adds to a micro-batch, from the rows of its samples in the order of the packed row.
"""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Row:
    """What a model computes of a packed row: all of it, or a rank's slice, in which positions count
    from its beginning. Arrays stay on the host, for what decides shapes.

    Args:
        token_ids: ``[T]`` int64.
        positions: ``[T]`` int64, from 0 in each sample.
        logit_rows: ``[R]`` int64, increasing: the positions whose logits are computed, once for
            each temperature.
        temperature: ``[R]`` float32, the sampler's.
        logit_of: ``[N]`` int64, increasing: the entry of ``logit_rows`` that predicts the wanted
            token.
        targets: ``[N]`` int64, the wanted tokens: those that a loss reads.
        ends: ``[M]`` int64, the position of each sample's last token.
        host_logit_of: ``logit_of``.
        before: ``[N]`` int64, the position before each wanted token.
        host_ends: ``ends``.
    """

    token_ids: Tensor
    positions: Tensor
    logit_rows: Tensor
    temperature: Tensor
    logit_of: Tensor
    targets: Tensor
    ends: Tensor
    host_logit_of: I64
    before: I64
    host_ends: I64


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RowSlice(Row):
    """A rank's slice of a packed row.

    Args:
        counts: wanted tokens of each rank; the slice has those of its rank.
        end_counts: samples that end in each rank's slice.
        end_order: ``[M]`` int64, the place of each sample's end among those of all ranks, in the
            order of ranks.
    """

    end_order: Tensor
    counts: tuple[int, ...]
    end_counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Packed(Row):
    """A packed row. Its tensors came to the device in one copy.

    Args:
        spans: the spans of the row in order, each with the span that it attends to; with those of
            slices of equal length the last one may be padding.
        sample: ``[N]`` int64, row of the token's sample in the shard.
        sampled: ``[N]`` bool, whether the policy sampled the token.
        trained: ``[K]`` int64, the wanted tokens that are trained; the others are read by an
            auxiliary loss alone.
        fresh_rows, stale_rows: int64, those of the trained tokens that the policy sampled, by
            whether the version that is trained did.
        columns: ``[N]`` each: the shard's columns by name, float32; ``weight`` float64, that of the
            sample times the token's within it, 0 for one that is not trained; ``turn_row``,
            ``trajectory_row`` and ``staleness`` int64. What the role added, in its own shapes.
        source: ``[N]`` int64, position of the token in the shard's columns.
        trained_source: ``[K]`` int64, of the trained ones.
        rows: ``[M]`` int64, the samples by their rows in the shard, in the order of the packed row.
        slice: what this rank computes of the row; None where it computes the whole of it.
    """

    spans: tuple[Span, ...]
    sample: Tensor
    sampled: Tensor
    trained: Tensor
    fresh_rows: Tensor
    stale_rows: Tensor
    columns: Mapping[str, Tensor]
    source: I64
    trained_source: I64
    rows: I64
    slice: RowSlice | None = None

    @property
    def own(self) -> Row:
        """What this rank computes."""
        return self if self.slice is None else self.slice


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatches:
    """The micro-batches of ``shard``, in order, each packed and copied to the device when it is
    asked for; a filler is one untrained token.

    Args:
        shard: this rank's samples.
        device: of the tensors.
        share_prefixes: whether the attention supports spans with parents.
        extras: what the role adds.
        cut: of each row over ranks.
        length_of: the length that a row of so many tokens is filled up to; None leaves it. The
            filler is a sample without trained tokens.

    Raises:
        DataError: a sample's first token is marked as trained, or a temperature is not above 0.
    """

    shard: BatchShard
    device: torch.device
    _: KW_ONLY
    share_prefixes: bool
    extras: Extras | None = None
    cut: Cut = WHOLE
    length_of: Callable[[int], int] | None = None

    def __len__(self) -> int:
        return len(self.shard.micro_batches)

    def __iter__(self) -> Iterator[Packed]:
        wanted = self.shard.wanted()
        _check(self.shard.batch, wanted)
        for micro_batch in self.shard.micro_batches:
            yield self._pack(wanted, np.asarray(micro_batch, dtype=np.int64))

    def _pack(self, wanted: npt.NDArray[np.bool_], rows: I64) -> Packed:
        shard, cut = self.shard, self.cut
        batch = shard.batch
        row = _lay_out(batch, wanted, rows, self.share_prefixes)
        if self.length_of is not None:
            row = _filled(row, self.length_of(row.token_ids.size) - row.token_ids.size)
        temperature = batch.temperature[row.sample]
        # a row of logits serves every token that it foretells at one temperature
        asked = (row.before << 32) | temperature.astype(np.float32).view(np.uint32).astype(np.int64)
        _, first, logit_of = np.unique(asked, return_index=True, return_inverse=True)
        order = np.argsort(logit_of, kind="stable")
        source, sample, logit_of = row.source[order], row.sample[order], logit_of[order]
        trained = np.flatnonzero(batch.loss_mask[source])
        is_sampled = batch.kind[source] == SegmentKind.POLICY
        columns = _columns(shard, source, sample)
        is_stale = columns["staleness"] > 0
        arrays: dict[str, npt.NDArray[Any]] = {
            "token_ids": row.token_ids,
            "positions": row.positions,
            "logit_rows": row.before[first],
            "temperature": temperature[first],
            "logit_of": logit_of,
            "targets": batch.token_ids[source].astype(np.int64),
            "sample": sample,
            "sampled": is_sampled,
            "trained": trained,
            "fresh_rows": np.flatnonzero((is_sampled & ~is_stale)[trained]),
            "stale_rows": np.flatnonzero((is_sampled & is_stale)[trained]),
            "ends": row.ends,
        }
        if self.extras is not None:
            columns |= self.extras(row.samples)
        moved = arrays | {f"column {name}": one for name, one in columns.items()}
        spans, part = row.spans, None
        if cut.parts > 1:
            spans = padded_spans(row.spans, cut.parts)
            part = slice_row(arrays, row.before[order], cut)
            moved |= {f"slice {name}": one for name, one in part.arrays.items()}
        tensors = to_device(moved, self.device)
        return Packed(
            **{name: tensors[name] for name in arrays},
            slice=None if part is None else part.on_device(tensors),
            spans=spans,
            columns={name: tensors[f"column {name}"] for name in columns},
            source=source,
            trained_source=source[trained],
            rows=row.samples,
            host_logit_of=logit_of,
            before=row.before[order],
            host_ends=row.ends,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """How samples lie in a packed row, and their wanted tokens in any order.

    Args:
        before: ``[N]`` positions before the wanted tokens; ``source`` and ``sample`` as in
            ``Packed``.
    """

    token_ids: I64
    positions: I64
    spans: tuple[Span, ...]
    samples: I64
    ends: I64
    source: I64
    sample: I64
    before: I64


def _lay_out(batch: Batch, wanted: npt.NDArray[np.bool_], rows: I64, share_prefixes: bool) -> _Row:
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
    # for each wanted token of each sample: its entry in the columns, its sample, and the position
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
    order = np.asarray(samples, dtype=np.int64)
    return _Row(token_ids, positions, tuple(spans), order, ends, source, sample, before)


def _filled(row: _Row, filler: int) -> _Row:
    """The row with one more sample behind it, of ``filler`` tokens."""
    if not filler:
        return row
    return replace(
        row,
        token_ids=np.concatenate([row.token_ids, np.zeros(filler, np.int64)]),
        positions=np.concatenate([row.positions, np.arange(filler)]),
        spans=(*row.spans, Span(ROOT, 0, filler)),
    )


def padded_spans(spans: tuple[Span, ...], parts: int) -> tuple[Span, ...]:
    """The spans of a row that is padded to a multiple of ``parts`` tokens."""
    padding = -sum(span.size for span in spans) % parts
    return (*spans, Span(ROOT, 0, padding)) if padding else spans


@dataclass(frozen=True, slots=True, eq=False)
class _Slice:
    """A ``RowSlice`` on the host."""

    arrays: dict[str, npt.NDArray[Any]]
    before: I64
    counts: tuple[int, ...]
    end_counts: tuple[int, ...]

    def on_device(self, tensors: Mapping[str, Tensor]) -> RowSlice:
        return RowSlice(
            **{name: tensors[f"slice {name}"] for name in self.arrays},
            counts=self.counts,
            end_counts=self.end_counts,
            host_logit_of=self.arrays["logit_of"],
            before=self.before,
            host_ends=self.arrays["ends"],
        )


def slice_row(arrays: Mapping[str, npt.NDArray[Any]], before: I64, cut: Cut) -> _Slice:
    """A rank's slice of a row that is whole.

    Args:
        arrays: of the row, by their names in ``Packed``.
        before: ``[N]`` int64, increasing: the position before each wanted token.
        cut: the row over ranks.
    """
    tokens = arrays["token_ids"].size
    length = -(-tokens // cut.parts)
    padding = length * cut.parts - tokens
    low = cut.part * length
    borders = np.arange(cut.parts + 1) * length
    # both are in the order of positions, so that a rank's are neighbours
    wanted = np.searchsorted(before, borders)
    logits = np.searchsorted(arrays["logit_rows"], borders)
    own = slice(wanted[cut.part], wanted[cut.part + 1])
    rows = slice(logits[cut.part], logits[cut.part + 1])
    owner = arrays["ends"] // length
    places = np.empty_like(owner)
    places[np.argsort(owner, kind="stable")] = np.arange(owner.size)
    token_ids = np.concatenate([arrays["token_ids"], np.zeros(padding, np.int64)])
    positions = np.concatenate([arrays["positions"], np.arange(padding)])
    return _Slice(
        {
            "token_ids": token_ids[low : low + length],
            "positions": positions[low : low + length],
            "logit_rows": arrays["logit_rows"][rows] - low,
            "temperature": arrays["temperature"][rows],
            "logit_of": arrays["logit_of"][own] - rows.start,
            "targets": arrays["targets"][own],
            "ends": arrays["ends"][owner == cut.part] - low,
            "end_order": places,
        },
        before[own] - low,
        tuple(np.diff(wanted).tolist()),
        tuple(np.bincount(owner, minlength=cut.parts).tolist()),
    )


_COLUMNS = (
    "rollout_logprobs",
    "old_logprobs",
    "ref_logprobs",
    "advantages",
    "values",
    "returns",
)
"""Of a batch, for losses; those of later passes may be absent."""


def _columns(shard: BatchShard, source: I64, sample: I64) -> dict[str, npt.NDArray[Any]]:
    """What a loss reads of the wanted tokens."""
    batch = shard.batch
    columns: dict[str, npt.NDArray[Any]] = {
        name: column[source] for name in _COLUMNS if (column := getattr(batch, name)) is not None
    }
    versions = batch.policy_versions[source].astype(np.int64)
    columns["turn_row"] = batch.turn_index[source].astype(np.int64)
    columns["trajectory_row"] = batch.trajectory[sample].astype(np.int64)
    columns["staleness"] = np.where(versions < 0, 0, shard.policy_version - versions)
    if shard.sample_weight is not None:
        weight = shard.sample_weight[sample] * batch.loss_mask[source]
        columns["weight"] = weight.astype(np.float64)
    for name, weights in shard.auxiliary.items():
        chosen = np.flatnonzero(weights[source])
        columns[f"{name} tokens"] = chosen
        columns[f"{name} weights"] = weights[source][chosen].astype(np.float64)
    return columns


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
