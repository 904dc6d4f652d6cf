"""Token text: decodes token ids with the tokenizer that a run keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.store import RunDirectory, SecretMask

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


TokenText = Callable[["npt.NDArray[np.int32]"], str]


def token_text_of(run: RunDirectory, stage: str = "") -> TokenText | None:
    """What decodes a run's ids, markers shown; None where neither the run nor a model folder of it
    on this machine has a tokenizer.

    Args:
        run: the run.
        stage: whose tokenizer; by default, or where the stage kept none, the newest one's.
    """
    text = _kept(run, stage) or next(
        (path.read_text(encoding="utf-8") for path in _candidates(run) if path.is_file()), None
    )
    if text is None:
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(text)
    size = tokenizer.get_vocab_size()
    mask = SecretMask()

    def decode(token_ids: npt.NDArray[np.int32]) -> str:
        text = ""
        for known, tokens in groupby(token_ids.tolist(), key=lambda token: token < size):
            ids = list(tokens)
            if known:
                text += tokenizer.decode(ids, skip_special_tokens=False)
            else:  # the model's padded vocabulary
                text += "\N{REPLACEMENT CHARACTER}" * len(ids)
        return mask(text)

    return decode


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

    if not run.config_path.is_file():
        return
    config = load_config(run.config_path, trains=False)
    if config.model.path is not None:
        setting = pinned(config.model.path, run.read_record().get("parent"))
        if folder := cached_model(setting, config.base_dir):
            yield folder / "tokenizer.json"
