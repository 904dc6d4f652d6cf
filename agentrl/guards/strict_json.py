"""Strict JSON: RFC 8259 in linear time, with faults in words that a model can act on."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from typing import Any

_MAX_DEPTH = 64
_TOO_DEEP = f"it is nested too deeply, by more than {_MAX_DEPTH} levels"
_SPACE = re.compile(r"[ \t\n\r]*")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
_DIGITS = re.compile(r"\d{2,}+")
_BEGINS = re.compile(r'["\[{]|-?\d|true|false|null|NaN|-?Infinity')
_WINDOW = 512
_GROWTH = 8
_LONGEST_TOKEN = 16


class JSONFault(ValueError):  # noqa: N818 - what a text has, not what a program does
    """Why a text is no JSON.

    Args:
        reason: in words for the model.
        position: how far the text was read before the fault was met; its end where something is not
            closed.
    """

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.position = position


def read_json(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that stands at ``start``, white space aside, and the position behind it.

    Stricter than ``json.loads``: NaN and Infinity, a key given twice, half of a surrogate pair, and
    more than 64 levels are faults, since each would be lost or refused further on.

    Raises:
        JSONFault: there is none.
    """
    begin = _SPACE.match(text, start).end()  # type: ignore[union-attr]  # an empty match is a match
    value, size = _decoded(text, begin)
    end = begin + size
    if "\\u" in text[begin:end]:
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise JSONFault(r"a \ud800-\udfff escape stands without its other half", end) from None
    return value, end


def _decoded(text: str, begin: int) -> tuple[Any, int]:
    """The value and its length. The decoder is given a window of the text that grows until the
    value or a fault is whole in it: the error that it raises counts the lines of all the text that
    it was given.
    """
    if not _BEGINS.match(text, begin):
        raise JSONFault("Expecting value at character 0", begin)
    size = _WINDOW
    while True:
        window = text[begin : begin + size]
        whole = begin + size >= len(text)
        _check_depth(window, begin)
        try:
            value, end = _STRICT.raw_decode(window)
        except json.JSONDecodeError as error:
            unclosed = error.msg.startswith("Unterminated string")
            if whole or not (unclosed or error.pos > size - _LONGEST_TOKEN):
                position = len(text) if unclosed else begin + error.pos
                raise JSONFault(f"{error.msg} at character {error.pos}", position) from None
        except _RefusedError as error:
            raise JSONFault(str(error), begin + _extent(window)) from None
        except ValueError as error:
            # A whole number of thousands of digits.
            longest = sys.get_int_max_str_digits()
            position = next(
                (m.end() for m in _DIGITS.finditer(window) if m.end() - m.start() > longest),
                len(window),
            )
            raise JSONFault(str(error).partition(";")[0], begin + position) from None
        else:
            # A number at the end of the window may go on behind it.
            if whole or end < size:
                return value, end
        size *= _GROWTH


def _extent(window: str) -> int:
    """How far Python's own rules read what ours refuse."""
    try:
        return _LENIENT.raw_decode(window)[1]
    except json.JSONDecodeError as error:
        return error.pos


def _check_depth(window: str, begin: int) -> None:
    """Refuses what is nested too deeply before the decoder goes down into it."""
    if not window.startswith(("[", "{")) or window.count("[") + window.count("{") <= _MAX_DEPTH:
        return
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(window):
        bracket = match.group()
        if bracket in "[{":
            depth += 1
            if depth > _MAX_DEPTH:
                raise JSONFault(_TOO_DEEP, begin + match.end())
        elif bracket in "]}":
            depth -= 1
            if depth <= 0:
                # The value ends here, or is none.
                return


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise _RefusedError(f"the key {twice!r} is given twice")
    return value


def _no_constant(name: str) -> Any:
    raise _RefusedError(f"{name} is no JSON number")


class _RefusedError(ValueError):
    """What Python's own decoder would let through."""


_STRICT = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
# The length of a whole number's text, which may be any.
_LENIENT = json.JSONDecoder(parse_int=len)
