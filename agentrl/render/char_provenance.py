"""Character provenance: marks the author of each character through the rendering of a template.

- A chat template is a program that returns text without its origin. Before rendering, every string
  of a message is marked with three private-use characters.
- After rendering, the marks divide the text into pieces with one author each, and are removed.
- The text of an added token is quoted character by character, so that it cannot steer a template
  either (``'</think>' in content``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from agentrl.errors import DataError
from agentrl.render.encode import Piece, Source

# Private use, plane 16; in a text, they are quoted like the text of an added token.
_QUOTE = "\U0010fff0"
_BEGIN = "\U0010fff1"
_END = "\U0010fff2"
_MARKS = (_QUOTE, _BEGIN, _END)
_PARTS = re.compile(rf"{_QUOTE}(.)|({_BEGIN})|({_END})|([^{_QUOTE}{_BEGIN}{_END}]+)", re.DOTALL)


class Provenance:
    """Marks strings for one tokenizer, and reads the marks.

    Args:
        added_tokens: the text of every added token.
        assistant_markers: those that are allowed in an assistant's text.
    """

    def __init__(self, added_tokens: Iterable[str], assistant_markers: Iterable[str] = ()) -> None:
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
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))


def _quoted(match: re.Match[str]) -> str:
    return "".join(_QUOTE + character for character in match.group())


def _deeply(value: Any, pattern: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        return pattern.sub(_quoted, value)
    if isinstance(value, Mapping):
        return {_deeply(key, pattern): _deeply(item, pattern) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_deeply(item, pattern) for item in value]
    return value


def unmarked(pieces: Iterable[Piece]) -> str:
    """The text of all pieces."""
    return "".join(piece.text for piece in pieces)
