"""Rendered view: the exact text of each token sequence, with the origin of every part."""

from __future__ import annotations

from codecs import getincrementaldecoder
from itertools import pairwise
from typing import Any

import numpy as np

from agentrl.types import SegmentKind
from agentrl.viewer.pieces import TokenPieces
from agentrl.viewer.runs.stored_row import StoredRow


def rendered_view(pieces: TokenPieces, row: StoredRow) -> dict[str, Any]:
    """The text of each sequence, decoded from its ids and nothing else.

    Args:
        pieces: of the run's tokenizer.
        row: the trajectory.

    Returns:
        ``{"sequences": [{"turns", "text", "spans": [[start, end, kind, turn]]}]}``; start and end
        count UTF-16 units, as JavaScript does. A character whose tokens are of two origins counts
        for the later one.
    """
    return {"sequences": [_sequence(pieces, row, path) for path in row.paths()]}


def _sequence(pieces: TokenPieces, row: StoredRow, path: list[int]) -> dict[str, Any]:
    arrays = row.arrays
    places = row.positions(path)
    ids = arrays.token_ids[places]
    kinds = arrays.kinds[places]
    turns = arrays.turn_index[places]
    changes = np.flatnonzero((np.diff(kinds) != 0) | (np.diff(turns) != 0)) + 1
    data = pieces.data(ids)
    # One decoder for the whole sequence: the bytes of a character may lie in two tokens.
    decoder = getincrementaldecoder("utf-8")("replace")
    parts: list[str] = []
    spans: list[tuple[int, int, str, int]] = []
    for first, end in pairwise(sorted({0, *changes.tolist(), len(ids)})):
        parts.append(decoder.decode(b"".join(data[first:end]), end == len(ids)))
        begin = spans[-1][1] if spans else 0
        kind = SegmentKind(int(kinds[first])).name.lower()
        spans.append((begin, begin + _units(parts[-1]), kind, int(turns[first])))
    return {"turns": path, "text": "".join(parts), "spans": spans}


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
