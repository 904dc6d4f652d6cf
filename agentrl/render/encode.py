"""Text to ids so that only the template's own markers become added tokens."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.errors import DataError

__all__ = ["Piece", "PieceEncoder", "Source"]

_REMEMBERED_RUNS, _REMEMBERED_CHARACTERS = 4096, 4096  # so many stretches of text, each so long at most

_Run = tuple[tuple[str, bool], ...]  # adjacent ordinary text by author, and whether that is content


class Source(Enum):
    """Who wrote a piece of text, which decides what it may become."""

    TEMPLATE = "template"
    """The template: every added token in it counts."""
    ASSISTANT = "assistant"
    """A policy or a demonstration: only the markers that may stand inside an assistant's turn count."""
    CONTENT = "content"
    """Anyone else: all of it is ordinary text."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a rendered conversation with one author."""

    text: str
    source: Source


class PieceEncoder:
    """Encodes pieces as the tokenizer encodes their concatenation, except that no text can forge an added token.

    Adjacent ordinary text is encoded together, whoever wrote it, so clean content gives exactly the ids that the
    tokenizer gives for the rendered template. Ordinary text goes through a copy of the tokenizer's backend without
    its added tokens; Hugging Face's ``split_special_tokens`` would not do, as it lets through added tokens that are
    not flagged special, such as Qwen's ``<tool_call>``.

    Args:
        backend: the ``tokenizers.Tokenizer`` of a fast tokenizer; its model must be BPE.
        assistant_markers: added tokens that count in text of ``Source.ASSISTANT``.

    Raises:
        DataError: the tokenizer's model is not BPE.
    """

    def __init__(self, backend: Any, assistant_markers: Iterable[str]) -> None:
        self.added_ids: dict[str, int] = {
            token.content: token_id for token_id, token in sorted(backend.get_added_tokens_decoder().items())
        }
        self._added_id_set = frozenset(self.added_ids.values())
        self._ordinary = _without_added_tokens(backend, self.added_ids)
        self._patterns = {
            Source.TEMPLATE: _any_of(self.added_ids),
            Source.ASSISTANT: _any_of(marker for marker in assistant_markers if marker in self.added_ids),
            Source.CONTENT: None,
        }
        # siblings share prompts, and a conversation rendered anew repeats itself
        self._remembered = functools.lru_cache(_REMEMBERED_RUNS)(self._encode_run)

    def encode(self, pieces: Sequence[Piece]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Ids ``[n]``, and whether each covers at least one character of ``Source.CONTENT`` ``[n]``."""
        ids: list[int] = []
        content: list[bool] = []
        run: list[tuple[str, bool]] = []
        for piece in pieces:
            for text, added_id in self._split(piece):
                if added_id is None:
                    run.append((text, piece.source is Source.CONTENT))
                    continue
                self._flush(run, ids, content)
                ids.append(added_id)
                content.append(False)
        self._flush(run, ids, content)
        return np.asarray(ids, dtype=np.int32), np.asarray(content, dtype=np.bool_)

    def _split(self, piece: Piece) -> Iterable[tuple[str, int | None]]:
        pattern = self._patterns[piece.source]
        position = 0
        for match in pattern.finditer(piece.text) if pattern else ():
            if match.start() > position:
                yield piece.text[position : match.start()], None
            yield match.group(), self.added_ids[match.group()]
            position = match.end()
        if position < len(piece.text):
            yield piece.text[position:], None

    def _flush(self, run: list[tuple[str, bool]], ids: list[int], content: list[bool]) -> None:
        """Encode the ordinary text gathered in ``run`` as one string, append to ``ids`` and ``content``, empty it."""
        if not run:
            return
        short = sum(len(part) for part, _ in run) <= _REMEMBERED_CHARACTERS
        run_ids, run_content = (self._remembered if short else self._encode_run)(tuple(run))
        ids.extend(run_ids)
        content.extend(run_content)
        run.clear()

    def _encode_run(self, run: _Run) -> tuple[tuple[int, ...], tuple[bool, ...]]:
        text = "".join(part for part, _ in run)
        # content_before[i]: how many of the first i characters are content
        content_before = np.zeros(len(text) + 1, dtype=np.int64)
        content_before[1:] = np.cumsum(np.repeat([flag for _, flag in run], [len(part) for part, _ in run]))
        encoding = self._ordinary.encode(text, add_special_tokens=False)
        if not self._added_id_set.isdisjoint(encoding.ids):
            forged = sorted(self._added_id_set.intersection(encoding.ids))
            raise DataError(
                f"ordinary text became the added tokens {forged}: the tokenizer's merges build them; no text from a "
                "tool or a user may, so this tokenizer cannot be used"
            )
        content = (bool(content_before[end] > content_before[start]) for start, end in encoding.offsets)
        return tuple(encoding.ids), tuple(content)


def _any_of(markers: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern of the leftmost longest marker, which is how the backend matches its added tokens."""
    longest_first = sorted(markers, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _without_added_tokens(backend: Any, added_ids: dict[str, int]) -> Any:
    """A copy of ``backend`` that knows no added token and whose offsets are those of whole tokens."""
    from tokenizers import Tokenizer

    state = json.loads(backend.to_str())
    if state["model"]["type"] != "BPE":
        raise DataError(
            f"the tokenizer's model must be BPE for its text to be kept apart from its markers, got "
            f"{state['model']['type']}; use a model whose tokenizer is byte-level BPE"
        )
    merged = {"".join(pair) if isinstance(pair, list) else pair.replace(" ", "") for pair in state["model"]["merges"]}
    for content in added_ids:
        # A trainer puts special tokens into the vocabulary too, where `ignore_merges` would find them as whole words.
        if len(content) > 1 and content not in merged:
            state["model"]["vocab"].pop(content, None)
    # A post-processor trims whitespace off the offsets, or adds a token of its own.
    state |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    return Tokenizer.from_str(json.dumps(state))
