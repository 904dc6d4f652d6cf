"""Packing: a micro-batch as one packed row of tensors, with its trained tokens.

- If the attention allows, a row holds the common prefix of a group's samples once, trained tokens
  included, and then each sample's own tokens. Logprobs and gradients are the same for less work.
- The logits of a token come from the position before it.

Axes: T packed tokens, R positions whose logits are computed, N wanted and K trained tokens, M
samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

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


Extras: TypeAlias = Callable[[I64], Mapping[str, npt.NDArray[Any]]]
"""What a role adds to a micro-batch, from the rows of its samples in the order of the packed row.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A packed row. Its tensors came to the device in one copy; arrays stay on the host, for what
    decides shapes.

    Args:
        token_ids: ``[T]`` int64.
        positions: ``[T]`` int64, from 0 in each sample.
        spans: the spans of the row in order, each with the span that it attends to.
        logit_rows: ``[R]`` int64, increasing: the positions whose logits are computed, once for
            each temperature.
        temperature: ``[R]`` float32, the sampler's.
        logit_of: ``[N]`` int64, increasing: the entry of ``logit_rows`` that predicts the wanted
            token.
        targets: ``[N]`` int64, the wanted tokens: those that a loss reads.
        sample: ``[N]`` int64, row of the token's sample in the shard.
        sampled: ``[N]`` bool, whether the policy sampled the token.
        trained: ``[K]`` int64, the wanted tokens that are trained; the others are read by an
            auxiliary loss alone.
        fresh_rows, stale_rows: int64, those of the trained tokens that the policy sampled, by
            whether the version that is trained did.
        ends: ``[M]`` int64, the position of each sample's last token.
        columns: ``[N]`` each: the shard's columns by name, float32; ``weight`` float64, that of the
            sample times the token's within it, 0 for one that is not trained; ``turn_row``,
            ``trajectory_row`` and ``staleness`` int64. What the role added, in its own shapes.
        source: ``[N]`` int64, position of the token in the shard's columns.
        trained_source: ``[K]`` int64, of the trained ones.
        rows: ``[M]`` int64, the samples by their rows in the shard, in the order of the packed row.
        host_logit_of: ``logit_of``.
        before: ``[N]`` int64, the position before each wanted token.
        host_ends: ``ends``.
    """

    token_ids: Tensor
    positions: Tensor
    spans: tuple[Span, ...]
    logit_rows: Tensor
    temperature: Tensor
    logit_of: Tensor
    targets: Tensor
    sample: Tensor
    sampled: Tensor
    trained: Tensor
    fresh_rows: Tensor
    stale_rows: Tensor
    ends: Tensor
    columns: Mapping[str, Tensor]
    source: I64
    trained_source: I64
    rows: I64
    host_logit_of: I64
    before: I64
    host_ends: I64


def micro_batches(
    shard: BatchShard,
    device: torch.device,
    *,
    share_prefixes: bool,
    extras: Extras | None = None,
) -> Iterator[Packed]:
    """The micro-batches of ``shard``, in order; a filler is one untrained token.

    Args:
        shard: this rank's samples.
        device: of the tensors.
        share_prefixes: whether the attention supports spans with parents.
        extras: what the role adds.

    Raises:
        DataError: a sample's first token is marked as trained, or a temperature is not above 0.
    """
    wanted = shard.wanted()
    _check(shard.batch, wanted)
    for micro_batch in shard.micro_batches:
        rows = np.asarray(micro_batch, dtype=np.int64)
        yield _pack(shard, wanted, rows, device, share_prefixes, extras)


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


def _pack(
    shard: BatchShard,
    wanted: npt.NDArray[np.bool_],
    rows: I64,
    device: torch.device,
    share_prefixes: bool,
    extras: Extras | None,
) -> Packed:
    batch = shard.batch
    row = _lay_out(batch, wanted, rows, share_prefixes)
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
    if extras is not None:
        columns |= extras(row.samples)
    tensors = to_device(arrays | {f"column {name}": one for name, one in columns.items()}, device)
    return Packed(
        **{name: tensors[name] for name in arrays},
        spans=row.spans,
        columns={name: tensors[f"column {name}"] for name in columns},
        source=source,
        trained_source=source[trained],
        rows=row.samples,
        host_logit_of=logit_of,
        before=row.before[order],
        host_ends=row.ends,
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
