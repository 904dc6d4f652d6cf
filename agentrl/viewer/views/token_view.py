"""Token view: every token of a trajectory with each number that is known of it.

Axis: N, all tokens that the turns add, in turn order, context before completion. What belongs to
sampled tokens alone is NaN elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.errors import DataError
from agentrl.store import Annotation, AnnotationColumn
from agentrl.viewer.pieces import HIDDEN_PIECE, REDACTED_ID
from agentrl.viewer.runs.open_run import OpenRun
from agentrl.viewer.runs.stored_row import StoredRow
from agentrl.viewer.secret_tokens import HIDDEN
from agentrl.viewer.views.token_columns import (
    ALTERNATIVES_MISSING,
    DERIVED,
    column_of,
    missing_columns,
)
from agentrl.viewer.wire import packed


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
    run: OpenRun, row: StoredRow, token_ids: npt.NDArray[np.int32], missing: dict[str, str]
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


def _alternatives(run: OpenRun, row: StoredRow, missing: dict[str, str]) -> dict[str, Any] | None:
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
) -> Mapping[str, npt.NDArray[np.generic]]:
    """The newest array of each name."""
    found: dict[str, npt.NDArray[np.generic]] = {}
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

    def add_learned(self, learned: Mapping[str, npt.NDArray[np.generic]]) -> None:
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

    def _spread(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
        spread = np.full(self._row.arrays.token_ids.size, np.nan, np.float32)
        spread[self._row.policy_positions] = values
        return spread

    def _add(self, name: str, values: npt.NDArray[Any]) -> None:
        facts = column_of(name, self._declared).record()
        del facts["name"]
        self.made[name] = {**facts, "values": packed(values.astype(np.float32))}
