"""Vocabulary: a tokenizer whose tokens are made-up words."""

from __future__ import annotations

import numpy as np
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE

from agentrl.run import stage_tokenizer
from agentrl.store import RunDirectory

__all__ = ["keep_tokenizer"]


def keep_tokenizer(run: RunDirectory, random: np.random.Generator, size: int) -> None:
    """Keeps a tokenizer in a run, as a trainer does.

    Args:
        run: which.
        random: where the words come from.
        size: tokens in the vocabulary: byte-level words of 1 to 8 letters; a tenth end a line.
    """
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words: dict[str, int] = {}
    while len(words) < size:
        word = "".join(random.choice(letters, random.integers(1, 9)))
        form = f"{word}Ċ" if random.random() < 0.1 else f"Ġ{word}"
        words.setdefault(form, len(words))
    made = Tokenizer(BPE(words, []))
    made.decoder = decoders.ByteLevel()
    (run.models_folder / "start").mkdir(parents=True)
    made.save(str(run.models_folder / "start" / "tokenizer.json"))
    stage_tokenizer.keep_tokenizer(run, "rl", run.models_folder / "start")
