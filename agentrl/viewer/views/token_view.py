"""Token view: every token of a trajectory with each number known of it, and the exact texts.

Axis: N, all tokens that the turns add, in turn order, context before completion. What belongs to
sampled tokens alone is NaN elsewhere.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.errors import DataError
from agentrl.store import Annotation, AnnotationColumn
from agentrl.store.annotations.annotation import FULL_COLUMNS, TOKEN_COLUMNS
from agentrl.types import SegmentKind
from agentrl.types.arrays import F32, I32, AnyArray
from agentrl.viewer.pieces import HIDDEN, HIDDEN_PIECE, REDACTED_ID, TokenPieces
from agentrl.viewer.runs.open_run import OpenRun
from agentrl.viewer.runs.stored_row import StoredRow
from agentrl.viewer.wire import packed

DERIVED = AnnotationColumn(
    "difference",
    "token",
    "nats",
    "diverging",
    "Log-probability by the trainer before the step less that by the sampler (derived here).",
)
SAMPLED = (
    AnnotationColumn(
        "logprobs", "token", "nats", help="Log-probability as it was sampled."
    ),
    AnnotationColumn(
        "policy_versions", "token", help="Version of the weights that sampled it."
    ),
)
"""What the rollout itself recorded."""

ALTERNATIVES_MISSING = (
    "no likeliest tokens were recorded beside the sampled ones: store.detail: full asks an engine "
    "of token ids for them; an export with --redact leaves them out"
)

_KNOWN = {
    column.name: column for column in (*SAMPLED, DERIVED, *TOKEN_COLUMNS, *FULL_COLUMNS)
}
_FULL = {column.name for column in FULL_COLUMNS}
_WHEN_THERE_IS_ONE = {"ref_logprobs": "a reference", "correction": "such a correction"}


def column_of(name: str, declared: Mapping[str, AnnotationColumn]) -> AnnotationColumn:
    """A column as the run declared it; else as this agentrl knows it, else by its name alone."""
    return declared.get(name) or _KNOWN.get(name) or AnnotationColumn(name, "token")


def missing_columns(
    found: Iterable[str], columns: Mapping[str, Any], note: str = ""
) -> dict[str, str]:
    """Why a trajectory lacks a column, and which setting records it, by the column's name.

    Args:
        found: the columns that it has.
        columns: of the trajectory's row.
        note: what the run's own setting is.
    """
    given = set(found)
    return {name: _why(name, columns, note) for name in _KNOWN if name not in given}


def _why(name: str, columns: Mapping[str, Any], note: str) -> str:
    if columns.get("purpose") != "train":
        return "nothing of an evaluation is trained"
    setting = "full" if name in _FULL else "tokens"
    where = _WHEN_THERE_IS_ONE.get(name)
    needs = f" and the algorithm has {where}" if where else ""
    return (
        "no step has recorded it for this trajectory; it is recorded where a step trains it with "
        f"store.detail: {setting}{needs}{note}"
    )


def token_view(
    run: OpenRun, row: StoredRow, *, learner: str | None = None, step: int | None = None
) -> dict[str, Any]:
    """All of a trajectory's tokens.

    Args:
        run: whose, under its lock.
        row: the trajectory.
        learner: what this learner learned of the tokens; every one's newest where None.
        step: what was learned in this step; the newest where None.
    """
    arrays = row.arrays
    missing: dict[str, str] = {}
    pieces, parts = pieces_of(run, row, arrays.token_ids, missing)
    columns = _Columns(row, run.reader.columns())
    columns.add_learned(_chosen(row.annotations, learner, step))
    if (arrays.token_ids == REDACTED_ID).any():
        missing[f"tokens shown as {HIDDEN_PIECE}"] = HIDDEN
    note = run.setting_note("detail")
    missing |= missing_columns(columns.made, row.columns, note) | columns.unfit
    return {
        "num_tokens": int(arrays.token_ids.size),
        "ids": packed(arrays.token_ids),
        "kinds": packed(arrays.kinds),
        "turn": packed(arrays.turn_index),
        "sequence": packed(row.sequences[arrays.turn_index]),
        "pieces": pieces,
        "bytes": {str(place): part.hex() for place, part in parts.items()},
        "columns": columns.made,
        "alternatives": _alternatives(run, row, missing),
        "missing": missing,
    }


def pieces_of(
    run: OpenRun, row: StoredRow, token_ids: I32, missing: dict[str, str]
) -> tuple[list[str], dict[int, bytes]]:
    """The text of each token, and the bytes of those that are no whole characters; without a
    tokenizer the ids, and ``missing`` says why.
    """
    try:
        return run.pieces(row.columns["stage"]).of(token_ids)
    except DataError as error:
        missing["pieces"] = str(error)
        return [
            HIDDEN_PIECE if token_id == REDACTED_ID else f"<{token_id}>"
            for token_id in token_ids.tolist()
        ], {}


def _alternatives(
    run: OpenRun, row: StoredRow, missing: dict[str, str]
) -> dict[str, Any] | None:
    """The likeliest tokens beside sampled ones, end to end, and each one's text once."""
    found = row.alternatives
    if found is None:
        is_hidden = (row.arrays.token_ids == REDACTED_ID).any()
        missing["alternatives"] = HIDDEN if is_hidden else ALTERNATIVES_MISSING
        return None
    unique = np.unique(found.ids[found.ids >= 0])
    pieces, parts = pieces_of(run, row, unique, {})
    return {
        "width": found.ids.shape[1],
        "tokens": packed(found.positions),
        "ids": packed(found.ids.ravel()),
        "logprobs": packed(found.logprobs.ravel()),
        "pieces": dict(zip(map(str, unique.tolist()), pieces, strict=True)),
        "bytes": {str(unique[place]): part.hex() for place, part in parts.items()},
    }


def _chosen(
    annotations: Sequence[Annotation], learner: str | None, step: int | None
) -> Mapping[str, AnyArray]:
    """The newest array of each name."""
    found: dict[str, AnyArray] = {}
    for annotation in annotations:
        if learner in (None, annotation.learner) and step in (None, annotation.step):
            found.update(annotation.arrays)
    return found


class _Columns:
    """The columns of a trajectory's tokens.

    Args:
        row: the trajectory.
        declared: what its run says of them.
    """

    def __init__(self, row: StoredRow, declared: Mapping[str, AnnotationColumn]) -> None:
        self.made: dict[str, dict[str, Any]] = {}
        self.unfit: dict[str, str] = {}
        self._row = row
        self._declared = declared
        versions = row.arrays.policy_versions
        self._add("logprobs", row.arrays.logprobs)
        self._add("policy_versions", np.where(versions < 0, np.nan, versions))

    def add_learned(self, learned: Mapping[str, AnyArray]) -> None:
        """Adds arrays with an entry for every POLICY token, or for every turn."""
        places = self._row.policy_positions
        for name, values in learned.items():
            column = column_of(name, self._declared)
            wanted = len(self._row.turns) if column.level == "turn" else places.size
            if values.size != wanted:
                self.unfit[name] = (
                    f"it has {values.size} entries for {wanted} sampled tokens or turns: nobody "
                    "knows which is which"
                )
            elif column.level == "turn":
                self._add(name, values)
            else:
                self._add(name, self._spread(values))
        # Both are of the same tokens: the trainer's before its step, and the sampler's.
        if "old_logprobs" in self.made:
            old = self._spread(learned["old_logprobs"])
            self._add(DERIVED.name, old - self._row.arrays.logprobs)

    def _spread(self, values: AnyArray) -> F32:
        spread = np.full(self._row.arrays.token_ids.size, np.nan, np.float32)
        spread[self._row.policy_positions] = values
        return spread

    def _add(self, name: str, values: npt.NDArray[Any]) -> None:
        facts = column_of(name, self._declared).record()
        del facts["name"]
        self.made[name] = {**facts, "values": packed(values.astype(np.float32))}


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
        # The browser counts UTF-16 code units.
        end_unit = begin + len(parts[-1].encode("utf-16-le", "surrogatepass")) // 2
        kind = SegmentKind(int(kinds[first])).name.lower()
        spans.append((begin, end_unit, kind, int(turns[first])))
    return {"turns": path, "text": "".join(parts), "spans": spans}
