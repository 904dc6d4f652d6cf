"""Token text: decodes token ids with the tokenizer that a run keeps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.cli.terminal import say
from agentrl.errors import ConfigError
from agentrl.guards.regular_file import is_regular
from agentrl.store import RunDirectory, SecretMask, TrajectoryReader, decode_trajectory
from agentrl.types import Trajectory
from agentrl.viewer.pieces import HIDDEN_PIECE, REDACTED_ID, TokenPieces
from agentrl.viewer.runs.stored_row import StoredRow
from agentrl.viewer.secret_tokens import has_marks, without_secrets

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from tokenizers import Tokenizer


TokenText = Callable[["npt.NDArray[np.int32]"], str]


def token_text_of(run: RunDirectory, stage: str = "") -> TokenText | None:
    """What decodes a run's ids, markers shown; None where neither the run nor a model folder of it
    on this machine has a tokenizer.

    Args:
        run: the run.
        stage: whose tokenizer; by default, or where the stage kept none, the newest one's.
    """
    tokenizer = _tokenizer(run, stage)
    if tokenizer is None:
        return None
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
        tokenizer = _tokenizer(run, columns.get("stage", ""))
        pieces = None if tokenizer is None else TokenPieces(tokenizer)
        arrays = without_secrets(StoredRow(columns, arrays, ()), pieces, SecretMask()).arrays
    return decode_trajectory(columns, arrays)


def _tokenizer(run: RunDirectory, stage: str) -> Tokenizer | None:
    text = _kept(run, stage) or next(
        (path.read_text(encoding="utf-8") for path in _candidates(run) if path.is_file()), None
    )
    if text is None:
        return None
    from tokenizers import Tokenizer

    return Tokenizer.from_str(text)


def _kept(run: RunDirectory, stage: str) -> str | None:
    """``tokenizer.json`` as the run keeps it by hash, of a stage or else of the newest."""
    kept = run.read_record().get("tokenizers", {})
    names = [stage] if stage in kept else list(reversed(kept))
    hashes = (kept[name].get("tokenizer.json") for name in names)
    sha256 = next((found for found in hashes if found), None)
    return run.read_blob(sha256).decode() if sha256 else None


def _candidates(run: RunDirectory) -> Iterator[Path]:
    """``tokenizer.json`` of the models that the run made, the newest first, then of the one that it
    was given.
    """
    made = run.models_folder.glob("*/tokenizer.json")
    yield from sorted(made, key=lambda path: path.stat().st_mtime, reverse=True)
    from agentrl.config import load_config
    from agentrl.run.model_folder import cached_model, pinned

    if not is_regular(run.config_path):
        return
    try:
        config = load_config(run.config_path, trains=False)
    except ConfigError as error:
        say(f"! passed over: {error}", file=sys.stderr)
        return
    if config.model.path is not None:
        setting = pinned(config.model.path, run.read_record().get("parent"))
        if folder := cached_model(setting, config.base_dir):
            yield folder / "tokenizer.json"
