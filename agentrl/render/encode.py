"""Pieces: text by author, marked through a template's rendering, and encoded.

- Only the template's own markers become added tokens.
- A chat template is a program that returns text without its origin. Before rendering, every string
  of a message is marked with three private-use characters.
- After rendering, the marks divide the text into pieces with one author each, and are removed.
- The text of an added token is quoted character by character, so that it cannot steer a template
  either (``'</think>' in content``).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from agentrl.errors import DataError
from agentrl.types.arrays import I32, Bools

_CACHED_TEXTS = 4096
# No longer text is kept in a cache.
_CACHED_CHARACTERS = 4096

T = TypeVar("T", bound=Hashable)
R = TypeVar("R")

# A text is cut at its markers, each with its id.
_Parts = tuple[tuple[str, int | None], ...]
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
# Adjacent ordinary text has its author, and whether it is content.
_Run = tuple[tuple[str, bool], ...]
Encoded: TypeAlias = tuple[I32, Bools]
"""Ids ``[n]``, and whether each covers content ``[n]``."""


class Source(Enum):
    """The author of a piece of text, which decides which added tokens it may contain."""

    TEMPLATE = "template"
    """The template: every added token in it counts."""
    ASSISTANT = "assistant"
    """A policy or a demonstration: only the markers that may stand inside an assistant's turn
    count.
    """
    CONTENT = "content"
    """Anyone else: all of it is ordinary text."""


class Piece(NamedTuple):
    """A stretch of a rendered conversation with one author."""

    text: str
    source: Source


class PieceEncoder:
    """Encodes pieces as the tokenizer encodes their concatenation, but text cannot forge an added
    token.

    - Adjacent ordinary text is encoded together, regardless of its author. Clean content therefore
      gives exactly the tokenizer's ids for the rendered template.
    - Ordinary text is encoded by a copy of the tokenizer's backend without its added tokens.
      Hugging Face's ``split_special_tokens`` lets added tokens through that are not flagged
      special, such as Qwen's ``<tool_call>``.

    Args:
        backend: the ``tokenizers.Tokenizer`` of a fast tokenizer; its model must be BPE.
        assistant_markers: added tokens that are allowed in text of ``Source.ASSISTANT``.

    Raises:
        DataError: the tokenizer's model is not BPE.
    """

    def __init__(self, backend: Any, assistant_markers: Iterable[str]) -> None:
        self.added_ids: dict[str, int] = {
            token.content: token_id
            for token_id, token in sorted(backend.get_added_tokens_decoder().items())
        }
        self._added = {
            token_id: (np.asarray([token_id], dtype=np.int32), np.zeros(1, dtype=np.bool_))
            for token_id in self.added_ids.values()
        }
        self._ordinary = _without_added_tokens(backend, self.added_ids)
        allowed = self.added_ids.keys() & set(assistant_markers)
        self._parts_of = {
            Source.TEMPLATE: _splitter(self.added_ids),
            Source.ASSISTANT: _splitter(
                {marker: self.added_ids[marker] for marker in allowed}
            ),
        }
        # the rollouts of a group share prompts, and a conversation is rendered again at each turn
        self._run = cached_if_short(
            self._encode_run, size=lambda run: sum(len(part) for part, _ in run)
        )

    def encode(self, pieces: Iterable[Piece]) -> Encoded:
        """Encodes pieces in order.

        Returns:
            Ids ``[n]``, and whether each covers at least one character of ``Source.CONTENT``
            ``[n]``.

        Raises:
            DataError: a text holds half of a surrogate pair, or the tokenizer's merges build an
                added token.
        """
        encoded: list[Encoded] = []
        run: list[tuple[str, bool]] = []
        for text, source in pieces:
            if source is Source.CONTENT:
                if text:
                    run.append((text, True))
                continue
            for part, added_id in self._parts_of[source](text):
                if added_id is None:
                    run.append((part, False))
                    continue
                if run:
                    encoded.append(self._run(tuple(run)))
                    run = []
                encoded.append(self._added[added_id])
        if run:
            encoded.append(self._run(tuple(run)))
        if not encoded:
            return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.bool_)
        ids, content = zip(*encoded, strict=True)
        return np.concatenate(ids), np.concatenate(content)

    def token_ends(self, text: str) -> list[int]:
        """For each token of a text that is ordinary as a whole, as ``Source.CONTENT`` is, the
        number of characters up to its end.
        """
        return [
            end for _, end in self._ordinary.encode(text, add_special_tokens=False).offsets
        ]

    def _encode_run(self, run: _Run) -> Encoded:
        """Adjacent ordinary text encoded as one string."""
        text = "".join(part for part, _ in run)
        if half := _LONE_SURROGATE.search(text):
            raise DataError(
                f"a message must be text that UTF-8 can carry, got {half.group()!r}, half of a "
                f"surrogate pair; replace what is no character, as "
                f"text.encode(errors='replace').decode() does"
            )
        encoding = self._ordinary.encode(text, add_special_tokens=False)
        if forged := sorted(self._added.keys() & encoding.ids):
            raise DataError(
                f"ordinary text became the added tokens {forged}: the tokenizer's merges build "
                f"them; no text from a tool or a user may, so this tokenizer cannot be used"
            )
        return np.asarray(encoding.ids, dtype=np.int32), _covering_content(encoding, run)


def _covering_content(encoding: Any, run: _Run) -> Bools:
    """Whether each token ``[n]`` covers at least one character of content."""
    content = np.zeros(len(encoding.ids), dtype=np.bool_)
    if not any(flag for _, flag in run):
        return content
    starts, ends = np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2).T
    position = 0
    for part, flag in run:
        if flag:
            content |= (starts < position + len(part)) & (ends > position)
        position += len(part)
    return content & (starts < ends)


def _splitter(markers: Mapping[str, int]) -> Callable[[str], _Parts]:
    """Splits text at its leftmost longest markers, as the backend matches its added tokens.

    Args:
        markers: the markers with their ids.
    """
    longest_first = sorted(markers, key=len, reverse=True)
    # Without markers nothing may match; an empty pattern would, between all characters.
    never = "(?!)"
    pattern = re.compile(f"({'|'.join(map(re.escape, longest_first)) or never})")

    def parts(text: str) -> _Parts:
        return tuple((part, markers.get(part)) for part in pattern.split(text) if part)

    return cached_if_short(parts)


def cached_if_short(
    function: Callable[[T], R],
    *,
    size: Callable[[Any], int] = len,
    longest: int = _CACHED_CHARACTERS,
) -> Callable[[T], R]:
    """``function`` with a cache of its last answers for arguments up to a size."""
    cached = functools.lru_cache(_CACHED_TEXTS)(function)
    return lambda value: (cached if size(value) <= longest else function)(value)


def _without_added_tokens(backend: Any, added_ids: dict[str, int]) -> Any:
    """A copy of ``backend`` without added tokens, whose offsets are those of whole tokens."""
    from tokenizers import Tokenizer

    state = json.loads(backend.to_str())
    if state["model"]["type"] != "BPE":
        raise DataError(
            f"the tokenizer's model must be BPE for its text to be kept apart from its markers, "
            f"got {state['model']['type']}; use a model whose tokenizer is byte-level BPE"
        )
    merged = {
        "".join(pair) if isinstance(pair, list) else pair.replace(" ", "")
        for pair in state["model"]["merges"]
    }
    for content in added_ids:
        # a trainer adds special tokens to the vocabulary, where `ignore_merges` finds them as words
        if len(content) > 1 and content not in merged:
            state["model"]["vocab"].pop(content, None)
    # a post-processor trims white space off the offsets, or adds a token
    state |= {
        "added_tokens": [],
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
    return Tokenizer.from_str(json.dumps(state))


# Private use, plane 16; in a text, they are quoted like the text of an added token.
_QUOTE = "\U0010fff0"
_BEGIN = "\U0010fff1"
_END = "\U0010fff2"
_MARKS = (_QUOTE, _BEGIN, _END)
_PARTS = re.compile(
    rf"{_QUOTE}(.)|({_BEGIN})|({_END})|([^{_QUOTE}{_BEGIN}{_END}]+)", re.DOTALL
)


class Provenance:
    """Marks strings for one tokenizer, and reads the marks.

    Args:
        added_tokens: the text of every added token.
        assistant_markers: those that are allowed in an assistant's text.
    """

    def __init__(
        self, added_tokens: Iterable[str], assistant_markers: Iterable[str] = ()
    ) -> None:
        added = set(added_tokens)
        markers = set(assistant_markers)
        self._outsiders = _any_of({*added, *_MARKS})
        self._assistants = _any_of({*(added - markers), *_MARKS})

    def content(self, text: str) -> str:
        """Marks the text of a user, a system, a tool or an environment.

        White space around it stays outside the marks, so that a template may trim it.
        """
        inner = text.strip()
        if not inner:
            return text
        start = text.index(inner)
        quoted = self._outsiders.sub(_quoted, inner)
        return f"{text[:start]}{_BEGIN}{quoted}{_END}{text[start + len(inner) :]}"

    def assistant(self, value: Any) -> Any:
        """Marks an assistant's text, or the arguments of its calls."""
        return _deeply(value, self._assistants)

    def outsider(self, value: Any) -> Any:
        """Marks values beside contents, such as a name or a tool's description."""
        return _deeply(value, self._outsiders)

    def pieces(self, marked: str) -> list[Piece]:
        """Rendered text by author; unmarked text is the template's.

        Raises:
            DataError: the template split the content of a message.
        """
        pieces: list[Piece] = []
        inside = False
        for match in _PARTS.finditer(marked):
            quoted, begin, end, plain = match.groups()
            if (begin and inside) or (end and not inside):
                break
            inside = bool(begin) or (inside and not end)
            if text := quoted or plain:
                source = Source.CONTENT if inside or quoted else Source.TEMPLATE
                if pieces and pieces[-1].source is source:
                    text = pieces.pop().text + text
                pieces.append(Piece(text, source))
        else:
            if not inside:
                return pieces
        raise DataError(
            "the chat template cuts or reorders the content of a message, so its text cannot be "
            "distinguished from the template's own; set RendererSpec.chat_template to one that "
            "writes each message whole"
        )


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    # An alternation takes the first text that fits: a longer one stands before its beginning.
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))


def _quoted(match: re.Match[str]) -> str:
    return "".join(_QUOTE + character for character in match.group())


def _deeply(value: Any, pattern: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        return pattern.sub(_quoted, value)
    if isinstance(value, Mapping):
        return {
            _deeply(key, pattern): _deeply(item, pattern) for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_deeply(item, pattern) for item in value]
    return value


def unmarked(pieces: Iterable[Piece]) -> str:
    """The text of all pieces."""
    return "".join(piece.text for piece in pieces)
