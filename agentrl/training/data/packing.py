"""Packing: a micro-batch as one packed row of tensors, with its trained tokens.

- If the attention allows, a row holds the common prefix of a group's samples once, trained tokens
  included, and then each sample's own tokens. Logprobs and gradients are the same for less work.
- The logits of a token come from the position before it.
- Under sequence parallelism the row is cut into equal slices, one a rank. What a position foretells
  is settled before, so that a token whose position before it lies in another slice is not lost.

Axes: T packed tokens, L of a rank's slice, P planes of positions, R positions whose logits are
computed, N wanted and K trained tokens, M samples.
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
from agentrl.types import Batch, BatchShard, Experts, SegmentKind
from agentrl.types.arrays import recorded
from agentrl.types.batch import Media, media_within

I64 = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int32]

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
class Packed:
    """A packed row, or this rank's slice of it. Its tensors came to the device in one copy.

    What the model computes is of the slice, in which positions count from its beginning. What a
    loss reads is of the whole row. Arrays stay on the host, for what decides shapes.

    Args:
        token_ids: ``[L]`` int64.
        positions: ``[P, L]`` int64, from 0 in each sample; one plane for text.
        experts: ``[L, mixtures, K]`` int16, those that each token is to go through, -1 where it
            routes itself; None lets all of them.
        logit_rows: ``[R]`` int64, increasing: the positions whose logits are computed, once for
            each temperature.
        temperature: ``[R]`` float32, the sampler's.
        logit_of: int64, increasing: the entry of ``logit_rows`` that predicts each wanted token
            whose position before it lies here.
        targets: int64, those tokens; all N of a whole row. Where none is wanted here, one that
            nobody reads the answer for.
        ends: int64, the position of the last token of each sample that ends here; all M of a whole
            row. Where none does, the first position.
        copies: ``[L]`` int64, how many samples hold each token; 0 of a filler's.
        media: the images with placeholders here.
        host_logit_of: ``logit_of``.
        before: the position before each of ``targets``.
        host_ends: ``ends``.
        counts: of a slice, the wanted tokens of each rank; empty for a whole row.
        end_counts: of a slice, the samples that end in each rank's.
        end_order: of a slice ``[M]`` int64, the place of each sample's end among those of all
            ranks, in the order of ranks.
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
    """

    token_ids: Tensor
    positions: Tensor
    experts: Tensor | None = None
    logit_rows: Tensor
    temperature: Tensor
    logit_of: Tensor
    targets: Tensor
    ends: Tensor
    copies: Tensor
    media: Media
    host_logit_of: I64
    before: I64
    host_ends: I64
    counts: tuple[int, ...] = ()
    end_counts: tuple[int, ...] = ()
    end_order: Tensor | None = None
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


def counted(size: int, _media: Media) -> I64:
    """``[1, size]`` positions of a sample of text."""
    return np.arange(size)[None]


@dataclass(frozen=True, slots=True, eq=False)
class PackedMicroBatches:
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
        positions_of: ``[P, n]`` of a sample of n tokens with images; those of a prefix depend on
            nothing behind it.

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
    positions_of: Callable[[int, Media], I64] = counted

    def __len__(self) -> int:
        return len(self.shard.micro_batches)

    def __iter__(self) -> Iterator[Packed]:
        wanted, identities = self.shard.wanted(), self.shard.batch.identities()
        _check(self.shard.batch, wanted)
        for micro_batch in self.shard.micro_batches:
            yield self._pack(
                self._lay_out(wanted, identities, np.asarray(micro_batch, np.int64))
            )

    def _lay_out(self, wanted: npt.NDArray[np.bool_], identities: Ids, rows: I64) -> _Row:
        batch = self.shard.batch
        starts = batch.cu_seqlens.astype(np.int64)
        spans: list[Span] = []
        samples: list[int] = []
        # Each path leads through the spans of one sample.
        paths: list[list[int]] = []
        groups = batch.group[batch.trajectory[rows]] if self.share_prefixes else rows
        for group in dict.fromkeys(groups.tolist()):
            members = rows[groups == group]
            own, through = shared_spans(
                [identities[starts[row] : starts[row + 1]] for row in members]
            )
            already = len(spans)
            paths += [[already + index for index in path] for path in through]
            samples += members.tolist()
            spans += [
                s if s.parent == ROOT else s._replace(parent=s.parent + already)
                for s in own
            ]
        # A filler has none; the shard itself may be empty.
        if not spans:
            spans = [Span(ROOT, 0, 1)]
        span_ends = np.cumsum([span.size for span in spans])
        none = batch.media[:0]
        token_ids = np.zeros(span_ends[-1], dtype=np.int64)
        positions = np.zeros(
            (len(self.positions_of(0, none)), token_ids.size), dtype=np.int64
        )
        entries = np.full(token_ids.size, -1)
        ends = np.zeros(len(samples), dtype=np.int64)
        copies = np.zeros_like(token_ids)
        # for each wanted token of each sample: its entry in the columns, its sample, and the
        # position before it
        parts: list[tuple[I64, I64, I64]] = [(_NOTHING, _NOTHING, _NOTHING)]
        media = [none]
        for number, (sample_row, path) in enumerate(zip(samples, paths, strict=True)):
            places = np.concatenate(
                [np.arange(span_ends[i] - spans[i].size, span_ends[i]) for i in path]
            )
            start, stop = starts[sample_row : sample_row + 2].tolist()
            images = media_within(batch.media, start, stop)
            token_ids[places] = batch.token_ids[start:stop]
            entries[places] = np.arange(start, stop)
            copies[places] += 1
            positions[:, places] = self.positions_of(places.size, images)
            ends[number] = places[-1]
            # no span begins within an image
            images["start"] = places[images["start"]]
            media.append(images)
            trained = np.flatnonzero(wanted[start:stop])
            parts.append(
                (start + trained, np.full_like(trained, sample_row), places[trained - 1])
            )
        source, sample, before = map(np.concatenate, zip(*parts, strict=True))
        row = _Row(
            token_ids=token_ids,
            positions=positions,
            entries=entries,
            spans=tuple(spans),
            samples=np.asarray(samples, dtype=np.int64),
            ends=ends,
            copies=copies,
            media=np.unique(np.concatenate(media)),
            source=source,
            sample=sample,
            before=before,
        )
        if self.length_of is None:
            return row
        return _filled(row, self.length_of(token_ids.size) - token_ids.size)

    def _pack(self, row: _Row) -> Packed:
        batch = self.shard.batch
        temperature = batch.temperature[row.sample]
        # a row of logits serves every token that it foretells at one temperature
        # In one number, which sorts by position and then by temperature: the bits of a float above
        # 0 sort as it does.
        asked = (row.before << 32) | temperature.astype(np.float32).view(np.uint32).astype(
            np.int64
        )
        _, first, logit_of = np.unique(asked, return_index=True, return_inverse=True)
        order = np.argsort(logit_of, kind="stable")
        source, sample = row.source[order], row.sample[order]
        whole: dict[str, npt.NDArray[Any]] = {
            "token_ids": row.token_ids,
            "positions": row.positions,
            "logit_rows": row.before[first],
            "temperature": temperature[first],
            "logit_of": logit_of[order],
            "targets": batch.token_ids[source].astype(np.int64),
            "ends": row.ends,
            "copies": row.copies,
        }
        spans, part = row.spans, Part(whole, row.before[order])
        if self.cut.parts > 1:
            spans = padded_spans(row.spans, self.cut.parts)
            part = slice_row(whole, part.before, self.cut)
        part = part.filled()
        length = part.arrays["token_ids"].size
        low = self.cut.part * length
        trained = np.flatnonzero(batch.loss_mask[source])
        is_sampled = batch.kind[source] == SegmentKind.POLICY
        columns = _columns(self.shard, source, sample)
        is_stale = columns["staleness"] > 0
        arrays = part.arrays | {
            "sample": sample,
            "sampled": is_sampled,
            "trained": trained,
            "fresh_rows": np.flatnonzero((is_sampled & ~is_stale)[trained]),
            "stale_rows": np.flatnonzero((is_sampled & is_stale)[trained]),
        }
        if batch.routed_experts is not None:
            arrays["experts"] = _chosen(
                batch.routed_experts, row.entries[low : low + length], length
            )
        if self.extras is not None:
            columns |= self.extras(row.samples)
        moved = arrays | {f"column {name}": one for name, one in columns.items()}
        tensors = to_device(moved, self.device)
        return Packed(
            **{name: tensors[name] for name in arrays},
            spans=spans,
            media=media_within(row.media, low, low + length),
            columns={name: tensors[f"column {name}"] for name in columns},
            source=source,
            trained_source=source[trained],
            rows=row.samples,
            host_logit_of=part.arrays["logit_of"],
            before=part.before,
            host_ends=part.arrays["ends"],
            counts=part.counts,
            end_counts=part.end_counts,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """How samples lie in a packed row, and their wanted tokens in any order.

    Args:
        entries: the place of each token in the columns, of a common prefix in any of its samples;
            -1 for a filler, or none where it is behind all samples.
        before: ``[N]`` positions before the wanted tokens; the others as in ``Packed``.
    """

    token_ids: I64
    positions: I64
    entries: I64
    spans: tuple[Span, ...]
    samples: I64
    ends: I64
    copies: I64
    media: Media
    source: I64
    sample: I64
    before: I64


def _filled(row: _Row, filler: int) -> _Row:
    """The row with one more sample behind it, of ``filler`` tokens."""
    if not filler:
        return row
    return replace(
        row,
        token_ids=np.concatenate([row.token_ids, np.zeros(filler, np.int64)]),
        positions=_followed(row.positions, filler),
        copies=np.concatenate([row.copies, np.zeros(filler, np.int64)]),
        spans=(*row.spans, Span(ROOT, 0, filler)),
    )


def _followed(positions: I64, filler: int) -> I64:
    """``[P, T + filler]``: positions, and behind them those of a sample of text."""
    behind = np.broadcast_to(np.arange(filler), (len(positions), filler))
    return np.concatenate([positions, behind], axis=1)


def _chosen(record: Experts, entries: I64, length: int) -> npt.NDArray[np.int16]:
    """``[length, mixtures, K]`` the experts of a record's entries; what is no entry or has no
    experts routes itself."""
    chosen = np.full((length, *record.shape[1:]), -1, np.int16)
    places = np.flatnonzero(entries >= 0)
    own = record[entries[places]]
    chosen[places] = np.where(recorded(own)[:, None, None], own.astype(np.int16), -1)
    return chosen


def padded_spans(spans: tuple[Span, ...], parts: int) -> tuple[Span, ...]:
    """The spans of a row that is padded to a multiple of ``parts`` tokens."""
    padding = -sum(span.size for span in spans) % parts
    return (*spans, Span(ROOT, 0, padding)) if padding else spans


class Part(NamedTuple):
    """What a rank computes of a row: all of it, or its slice; by their names in ``Packed``."""

    arrays: dict[str, npt.NDArray[Any]]
    before: I64
    counts: tuple[int, ...] = ()
    end_counts: tuple[int, ...] = ()

    def filled(self) -> Part:
        """The part with an answer at its first token where it asks for none: every rank runs the
        same collectives, forward and backward."""
        arrays = {
            name: one if one.size else np.full(1, name == "temperature", one.dtype)
            for name, one in self.arrays.items()
        }
        before = self.before if self.before.size else arrays["logit_of"]
        return self._replace(arrays=arrays, before=before)


def slice_row(arrays: Mapping[str, npt.NDArray[Any]], before: I64, cut: Cut) -> Part:
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
    positions = _followed(arrays["positions"], padding)
    copies = np.concatenate([arrays["copies"], np.zeros(padding, np.int64)])
    return Part(
        {
            "token_ids": token_ids[low : low + length],
            "positions": positions[:, low : low + length],
            "logit_rows": arrays["logit_rows"][rows] - low,
            "temperature": arrays["temperature"][rows],
            "logit_of": arrays["logit_of"][own] - rows.start,
            "targets": arrays["targets"][own],
            "ends": arrays["ends"][owner == cut.part] - low,
            "copies": copies[low : low + length],
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
        name: column[source]
        for name in _COLUMNS
        if (column := getattr(batch, name)) is not None
    }
    columns |= {name: column[source] for name, column in batch.own.items()}
    versions = batch.policy_versions[source].astype(np.int64)
    columns["turn_row"] = batch.turn_index[source].astype(np.int64)
    columns["trajectory_row"] = batch.trajectory[sample].astype(np.int64)
    # A token that no policy sampled has version -1, and is not stale.
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
