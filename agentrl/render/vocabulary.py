"""A tokenizer's ids as text, and the segments that encoded context becomes."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.types import Segment, SegmentKind

__all__ = ["Vocabulary", "context_segments"]


class Vocabulary:
    """The ids that a tokenizer knows.

    Args:
        backend: the ``tokenizers.Tokenizer`` of a fast tokenizer.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._known_ids: frozenset[int] = frozenset(backend.get_vocab(with_added_tokens=True).values())
        self.size = max(self._known_ids) + 1

    def decode(self, token_ids: npt.NDArray[np.int32], stop_token_ids: Collection[int]) -> str:
        """See ``Renderer.decode``."""
        ids = token_ids.tolist()
        if ids and ids[-1] in stop_token_ids:
            ids.pop()
        parts, known = [], []
        for token_id in ids:
            if token_id in self._known_ids:
                known.append(token_id)
                continue
            parts += [self._backend.decode(known, skip_special_tokens=False), "\N{REPLACEMENT CHARACTER}"]
            known = []
        return "".join([*parts, self._backend.decode(known, skip_special_tokens=False)])

    def tokenize(self, text: str) -> npt.NDArray[np.int32]:
        """See ``Renderer.tokenize``."""
        return np.asarray(self._backend.encode(text, add_special_tokens=False).ids, dtype=np.int32)


def context_segments(ids: npt.NDArray[np.int32], content: npt.NDArray[np.bool_]) -> tuple[Segment, ...]:
    """Consecutive tokens of one kind: OBSERVATION where they cover content, else SCAFFOLD.

    Args:
        ids: ``[n]``.
        content: ``[n]``, as ``PieceEncoder.encode`` gives it.
    """
    bounds = [0, *(np.flatnonzero(np.diff(content)) + 1).tolist(), ids.size] if ids.size else [0]
    return tuple(
        Segment(SegmentKind.OBSERVATION if content[start] else SegmentKind.SCAFFOLD, ids[start:end])
        for start, end in pairwise(bounds)
    )
