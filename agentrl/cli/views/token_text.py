"""Token text: decodes token ids with the tokenizer that a run keeps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING

from agentrl.store import RunDirectory, SecretMask
from agentrl.viewer.pieces import HIDDEN_PIECE, REDACTED_ID, load_pieces, tokenizer_file

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


TokenText = Callable[["npt.NDArray[np.int32]"], str]


def token_text_of(run: RunDirectory) -> TokenText | None:
    """What decodes a run's ids, markers shown; None where the run keeps no tokenizer."""
    path = tokenizer_file(run, "")
    if path is None:
        return None
    tokenizer = load_pieces(path).tokenizer
    size = tokenizer.get_vocab_size()
    mask = SecretMask()

    def decode(token_ids: npt.NDArray[np.int32]) -> str:
        text = ""
        for known, tokens in groupby(token_ids.tolist(), key=lambda token: 0 <= token < size):
            ids = list(tokens)
            if known:
                text += tokenizer.decode(ids, skip_special_tokens=False)
            else:
                # of a masked secret, or of the model's padded vocabulary
                text += "".join(
                    HIDDEN_PIECE if token == REDACTED_ID else "\N{REPLACEMENT CHARACTER}"
                    for token in ids
                )
        return mask(text)

    return decode
