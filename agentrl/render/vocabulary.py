"""Vocabulary: converts between a tokenizer's ids and text, and encoded context to segments."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.types import MediaSpan, Segment, SegmentKind, frozen_ints

_CACHED_TEXTS = 4096
_CACHED_CHARACTERS = 4096  # of the longest text in a cache
_CACHED_IDS = 16  # such as the end of a prompt, which is the same for every turn


class Vocabulary:
    """The ids of a tokenizer.

    Args:
        backend: the ``tokenizers.Tokenizer`` of a fast tokenizer.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._known_ids: frozenset[int] = frozenset(
            backend.get_vocab(with_added_tokens=True).values()
        )
        self.size = max(self._known_ids) + 1
        # the rollouts of a group often contain the same texts
        self._cached_ids = functools.lru_cache(_CACHED_TEXTS)(self._encode)
        self._cached_text = functools.lru_cache(_CACHED_TEXTS)(self._text)

    def decode(self, token_ids: npt.NDArray[np.int32], stop_token_ids: Collection[int]) -> str:
        """See ``Renderer.decode``."""
        ids = token_ids.tolist()
        if ids and ids[-1] in stop_token_ids:
            ids.pop()
        return self._cached_text(tuple(ids)) if len(ids) <= _CACHED_IDS else self._text(ids)

    def _text(self, ids: Sequence[int]) -> str:
        if self._known_ids.issuperset(ids):
            return str(self._backend.decode(ids, skip_special_tokens=False))
        parts = list[str]()
        known = list[int]()
        for token_id in ids:
            if token_id in self._known_ids:
                known.append(token_id)
                continue
            parts += [
                self._backend.decode(known, skip_special_tokens=False),
                "\N{REPLACEMENT CHARACTER}",
            ]
            known = []
        return "".join([*parts, self._backend.decode(known, skip_special_tokens=False)])

    def tokenize(self, text: str) -> npt.NDArray[np.int32]:
        """See ``Renderer.tokenize``."""
        return (self._cached_ids if len(text) <= _CACHED_CHARACTERS else self._encode)(text)

    def _encode(self, text: str) -> npt.NDArray[np.int32]:
        ids = self._backend.encode(text, add_special_tokens=False).ids
        return frozen_ints(np.asarray(ids, dtype=np.int32))


def context_segments(
    ids: npt.NDArray[np.int32], content: npt.NDArray[np.bool_], media: Sequence[MediaSpan] = ()
) -> tuple[Segment, ...]:
    """Consecutive tokens of one kind: OBSERVATION if they cover content, else TEMPLATE.

    Args:
        ids: ``[n]``.
        content: ``[n]``, from ``PieceEncoder.encode``.
        media: images, whose tokens are content.
    """
    if not ids.size:
        return ()
    ids = frozen_ints(ids)
    bounds = [0, *(np.flatnonzero(content[1:] != content[:-1]) + 1).tolist(), ids.size]
    return tuple(
        Segment(
            SegmentKind.OBSERVATION if content[start] else SegmentKind.TEMPLATE,
            ids[start:end],
            media=tuple(
                replace(span, start=span.start - start)
                for span in media
                if start <= span.start < end
            ),
        )
        for start, end in pairwise(bounds)
    )
