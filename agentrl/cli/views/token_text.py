"""Token text: decodes token ids with the tokenizer that a run keeps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING

from agentrl.store import RunDirectory, SecretMask, TrajectoryReader, decode_trajectory
from agentrl.types import Trajectory
from agentrl.viewer.pieces import HIDDEN_PIECE, REDACTED_ID, TokenPieces, load_pieces
from agentrl.viewer.runs.run_tokenizer import tokenizer_file
from agentrl.viewer.runs.stored_row import StoredRow
from agentrl.viewer.secret_tokens import has_marks, without_secrets

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


TokenText = Callable[["npt.NDArray[np.int32]"], str]


def token_text_of(run: RunDirectory, stage: str = "") -> TokenText | None:
    """What decodes a run's ids, markers shown; None where the run keeps no tokenizer.

    Args:
        run: the run.
        stage: whose tokenizer; by default, or where the stage kept none, the newest one's.
    """
    pieces = _pieces(run, stage)
    if pieces is None:
        return None
    tokenizer = pieces.tokenizer
    size = tokenizer.get_vocab_size()
    mask = SecretMask()

    def decode(token_ids: npt.NDArray[np.int32]) -> str:
        text = ""
        for known, tokens in groupby(token_ids.tolist(), key=lambda token: 0 <= token < size):
            ids = list(tokens)
            if known:
                text += tokenizer.decode(ids, skip_special_tokens=False)
            else:  # of a masked secret, or of the model's padded vocabulary
                text += "".join(
                    HIDDEN_PIECE if token == REDACTED_ID else "\N{REPLACEMENT CHARACTER}"
                    for token in ids
                )
        return mask(text)

    return decode


def shown_trajectory(run: RunDirectory, reader: TrajectoryReader, trajectory_id: str) -> Trajectory:
    """A trajectory whose ids of masked secrets are ``REDACTED_ID``.

    Raises:
        StoreError: the run has none of this id, or its file is damaged.
    """
    columns, arrays = reader.row(trajectory_id)
    if has_marks(columns):
        pieces = _pieces(run, columns["stage"])
        arrays = without_secrets(StoredRow(columns, arrays, ()), pieces, SecretMask()).arrays
    return decode_trajectory(columns, arrays)


def _pieces(run: RunDirectory, stage: str) -> TokenPieces | None:
    path = tokenizer_file(run, stage)
    return None if path is None else load_pieces(path)
