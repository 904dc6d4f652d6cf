"""Secret tokens: hides the tokens of what a run masked in its texts.

The ids on disk are exact, since training and replay need them. Where a text of the run bears a mark
of ``SecretMask``, the tokens of that secret are hidden before anything decodes them. A secret that
this process's environment does not have cannot be found: then all tokens of that part of the turn
are hidden.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.store.json_text import to_json
from agentrl.store.masking import SecretMask, masked_names
from agentrl.types import SegmentKind
from agentrl.viewer.pieces import REDACTED_ID, TokenPieces
from agentrl.viewer.runs.stored_row import StoredRow

HIDDEN = "their text is a secret that the run masked, or may hold one; the ids on disk are whole"

_SAMPLED = (SegmentKind.POLICY, SegmentKind.TARGET)

Mask = npt.NDArray[np.bool_]
Find = Callable[[str], Iterable[tuple[int, int]]]
"""The spans of a text, as characters."""


def has_marks(columns: Mapping[str, Any]) -> bool:
    """Whether a secret was masked in a text of a stored row."""
    return any(masked_names(text) for text in columns.values() if isinstance(text, str))


def without_secrets(row: StoredRow, pieces: TokenPieces | None, mask: SecretMask) -> StoredRow:
    """A trajectory without the ids of what was masked in its texts.

    Args:
        row: the trajectory.
        pieces: of the run's tokenizer; None where it is not here.
        mask: of the secrets that this process knows.
    """
    ids = row.arrays.token_ids
    taken = (
        np.zeros(ids.size, dtype=bool) if pieces is None else taken_tokens(row, pieces, mask.spans)
    )
    for part, names in _marked_parts(row):
        shown = b"" if pieces is None else b"".join(pieces.data(ids[part]))
        # A secret that was found and hidden needs no more; one that nobody here knows takes the
        # whole part.
        if names - masked_names(mask(shown.decode(errors="replace"))):
            taken |= part
    return hiding(row, taken)


def hiding(row: StoredRow, taken: Mask) -> StoredRow:
    """A trajectory without the ids of some tokens ``[N]``, and without its further arrays by token:
    beside a secret its own first letters may stand as what was likely.
    """
    shown = np.where(taken, np.int32(REDACTED_ID), row.arrays.token_ids)
    kept = replace(row.arrays, token_ids=shown)
    return StoredRow(row.columns, kept, row.annotations).without_side()


def taken_tokens(row: StoredRow, pieces: TokenPieces, find: Find) -> Mask:
    """``[N]`` which tokens have a part in a span of the text of all, or of a sequence."""
    ids = row.arrays.token_ids
    taken = np.zeros(ids.size, dtype=bool)
    for places in (np.arange(ids.size), *map(row.positions, row.paths())):
        taken[places] |= tokens_of(pieces.data(ids[places]), find)
    return taken


def tokens_of(data: Sequence[bytes], find: Find) -> Mask:
    """``[N]`` which of N tokens, by their bytes, have a part in a span of the whole text.

    Args:
        data: the tokens' bytes.
        find: the spans of a text, as characters.
    """
    decoder = getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(part) for part in data]
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    # a token that ends within a character has a part in the one that comes next
    reach = np.where(lengths == 0, starts + 1, ends)
    text = "".join(texts) + decoder.decode(b"", True)
    taken = np.zeros(len(data), dtype=bool)
    for start, end in find(text):
        taken |= (starts < end) & (reach > start)
    return taken


def _marked_parts(row: StoredRow) -> Iterable[tuple[Mask, set[str]]]:
    """``[N]`` which tokens are a turn's context or its completion, and what is masked in its text;
    those without a mark are left out."""
    sampled = np.isin(row.arrays.kinds, _SAMPLED)
    before: set[str] = set()
    for turn in row.turns:
        own = row.arrays.turn_index == turn["index"]
        given = masked_names(to_json(turn.get("observed")))
        if turn["parent"] is None:
            # the context holds the conversation so far
            given |= before
        said = masked_names(to_json([turn.get("text"), turn.get("message")]))
        before |= given | said
        for part, names in ((own & ~sampled, given), (own & sampled, said)):
            if names:
                yield part, names
