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


def token_text_of(run: RunDirectory) -> TokenText | None:
    """What decodes a run's ids, markers shown; None where no model folder of the run is on this
    machine.
    """
    path = next((path for path in _candidates(run) if path.is_file()), None)
    if path is None:
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
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
