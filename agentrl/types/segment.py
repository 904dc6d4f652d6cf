"""Segment: consecutive tokens of one origin, which never changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType

import numpy as np

from agentrl.types.arrays import F32, I32, AnyArray, Experts, frozen_floats, frozen_ints

_NO_SIDE: Mapping[str, AnyArray] = MappingProxyType({})
_NO_IDS = frozen_ints(np.zeros(0, dtype=np.int32))

ALTERNATIVE_IDS = "alternative_ids"
ALTERNATIVE_LOGPROBS = "alternative_logprobs"
"""Side arrays ``[n, k]`` of a POLICY segment: the k most likely tokens where each of its own was
sampled, by falling logprob under the convention of ``Segment.logprobs``.
"""
ROUTED_EXPERTS = "routed_experts"
"""Side array of any segment that a mixture of experts read: see ``agentrl.types.arrays``."""


class SegmentKind(IntEnum):
    """The origin of a token (docs/tokens.md, Segment)."""

    PROMPT = 0
    POLICY = 1
    OBSERVATION = 2
    TEMPLATE = 3
    TARGET = 4


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """Placeholder tokens of one image: ``[start, start + num_tokens)`` within its segment.

    Args:
        start: the position of the first one.
        num_tokens: the number of placeholders.
        sha256: the image's hash (``Image.sha256``).
        kind: ``image``.
    """

    start: int
    num_tokens: int
    sha256: str
    kind: str


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Consecutive tokens of one kind.

    Args:
        kind: the tokens' origin.
        token_ids: ``[n]`` int32, made read-only.
        logprobs: ``[n]`` float32 in nats, of log-softmax(logits / temperature) over the whole
            vocabulary; on POLICY segments only.
        policy_version: the one version whose weights sampled every token; on POLICY segments only.
        media: images whose placeholders lie within.
        side: declared per-token arrays, ``[n, ...]`` each.

    Raises:
        ValueError: logprobs or version missing on POLICY or present elsewhere; lengths differ; a
            logprob is NaN or above 0 by more than rounding.
    """

    kind: SegmentKind
    token_ids: I32
    logprobs: F32 | None = None
    policy_version: int | None = None
    media: tuple[MediaSpan, ...] = ()
    side: Mapping[str, AnyArray] = field(default_factory=lambda: _NO_SIDE)

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", frozen_ints(self.token_ids))
        is_policy = self.kind is SegmentKind.POLICY
        given = (self.logprobs is not None, self.policy_version is not None)
        if given != (is_policy, is_policy):
            raise ValueError(
                f"logprobs and policy_version belong exactly on POLICY segments, got "
                f"kind={self.kind.name}, logprobs "
                f"{'given' if given[0] else 'missing'}, "
                f"policy_version={self.policy_version}"
            )
        if self.logprobs is not None:
            logprobs = frozen_floats(self.logprobs)
            object.__setattr__(self, "logprobs", logprobs)
            if logprobs.shape != self.token_ids.shape:
                raise ValueError(
                    f"{self.token_ids.size} tokens but {logprobs.size} logprobs"
                )
            # the maximum is NaN if any value is, and then compares as false
            if logprobs.size and not float(logprobs.max()) <= 1e-3:
                raise ValueError(f"a logprob is at most 0, got {float(logprobs.max())}")
        for name, array in self.side.items():
            if array.shape[0] != self.token_ids.size:
                raise ValueError(
                    f"side array {name!r} has {array.shape[0]} rows for {self.token_ids.size} "
                    f"tokens"
                )
        for span in self.media:
            if not 0 <= span.start < span.start + span.num_tokens <= self.token_ids.size:
                raise ValueError(
                    f"an image's tokens must lie within its segment of {self.token_ids.size}, got "
                    f"{span}"
                )

    def __len__(self) -> int:
        return int(self.token_ids.size)

    @property
    def alternatives(self) -> tuple[I32, F32] | None:
        """Ids and logprobs ``[n, k]`` of the most likely tokens; None where the engine gave
        none.
        """
        if ALTERNATIVE_IDS not in self.side:
            return None
        ids = self.side[ALTERNATIVE_IDS].astype(np.int32, copy=False)
        return ids, self.side[ALTERNATIVE_LOGPROBS].astype(np.float32, copy=False)

    @property
    def routed_experts(self) -> Experts | None:
        """``[n, L, k]`` the experts of each token; None where nobody told of any."""
        return self.side.get(ROUTED_EXPERTS)  # type: ignore[return-value]

    def with_experts(self, record: Experts | None) -> Segment:
        """The same tokens with these experts, or without any."""
        others = {name: one for name, one in self.side.items() if name != ROUTED_EXPERTS}
        return replace(
            self, side=others if record is None else {**others, ROUTED_EXPERTS: record}
        )

    def __reduce__(self) -> tuple[object, ...]:
        return Segment, (
            self.kind,
            self.token_ids,
            self.logprobs,
            self.policy_version,
            self.media,
            dict(self.side),
        )


def alternatives_side(ids: I32, logprobs: F32) -> Mapping[str, AnyArray]:
    """``Segment.side`` with the most likely tokens ``[n, k]``; empty where k is 0.

    Logprobs are kept in half precision, 1 part in 2,000: they take less than half the room on disk.

    Raises:
        ValueError: the two are of different shapes.
    """
    if ids.ndim != 2 or ids.shape != logprobs.shape:
        raise ValueError(
            f"alternatives need ids and logprobs of one shape [n, k], got {ids.shape} and "
            f"{logprobs.shape}"
        )
    if not ids.shape[1]:
        return _NO_SIDE
    with np.errstate(over="ignore"):
        # What is below the range becomes -inf.
        return {ALTERNATIVE_IDS: ids, ALTERNATIVE_LOGPROBS: logprobs.astype(np.float16)}


def share_experts(segments: Sequence[Segment], record: Experts) -> tuple[Segment, ...]:
    """The segments, each with its part of a record that begins with the first of them; tokens
    behind the record's end have none."""
    ends = np.cumsum([len(segment) for segment in segments])
    behind = ((0, ends[-1] - len(record)), (0, 0), (0, 0))
    whole = np.pad(record, behind, constant_values=np.iinfo(record.dtype).max)
    return tuple(map(Segment.with_experts, segments, np.split(whole, ends[:-1])))


def concat_ids(segments: Iterable[Segment], after: I32 = _NO_IDS) -> I32:
    """The token ids of ``segments`` in order.

    Args:
        segments: n tokens in all.
        after: ``[m]`` ids that precede them.

    Returns:
        ``[m + n]`` int32, read-only.
    """
    arrays = [segment.token_ids for segment in segments]
    if after.size or not arrays:
        arrays.insert(0, after)
    if len(arrays) == 1:
        return frozen_ints(arrays[0])
    ids = np.concatenate(arrays)
    ids.setflags(write=False)
    return ids


def concat_media(segments: Iterable[Segment], offset: int = 0) -> tuple[MediaSpan, ...]:
    """The images of ``segments`` in order, with starts shifted by ``offset`` tokens."""
    spans: list[MediaSpan] = []
    for segment in segments:
        if segment.media:
            spans += (replace(span, start=span.start + offset) for span in segment.media)
        offset += len(segment)
    return tuple(spans)
