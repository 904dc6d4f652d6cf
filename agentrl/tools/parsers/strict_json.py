"""JSON as RFC 8259 has it, and faults in words that a model can act on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

__all__ = ["JSONFault", "read_json"]

_MAX_DEPTH = 64
_TOO_DEEP = f"it is nested too deeply, by more than {_MAX_DEPTH} levels"
_SPACE = re.compile(r"[ \t\n\r]*")


class JSONFault(ValueError):  # noqa: N818 - what a text has, not what a program does
    """Why a text is no JSON."""


def read_json(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that stands at ``start``, white space aside, and the position behind it.

    Stricter than ``json.loads``: NaN and Infinity, a key given twice, half of a surrogate pair, and more than 64 levels
    are faults, since each would be lost or refused further on.

    Raises:
        JSONFault: there is none.
    """
    begin = _SPACE.match(text, start).end()  # type: ignore[union-attr]  # an empty match is a match
    try:
        value, end = _DECODER.raw_decode(text, begin)
    except json.JSONDecodeError as error:
        raise JSONFault(f"{error.msg} at character {error.pos - begin}") from None
    except RecursionError:
        raise JSONFault(_TOO_DEEP) from None
    except JSONFault:
        raise
    except ValueError as error:  # an integer of thousands of digits
        raise JSONFault(str(error).partition(";")[0]) from None
    if text.count("[", begin, end) + text.count("{", begin, end) > _MAX_DEPTH and _depth(value) > _MAX_DEPTH:
        raise JSONFault(_TOO_DEEP)
    if "\\u" in text[begin:end]:
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise JSONFault(r"a \ud800-\udfff escape stands without its other half") from None
    return value, end


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level := [child for parent in level if isinstance(parent, (dict, list)) for child in _children(parent)]:
        depth += 1
    return depth + 1


def _children(parent: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return parent.values() if isinstance(parent, dict) else parent


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise JSONFault(f"the key {twice!r} is given twice")
    return value


def _no_constant(name: str) -> Any:
    raise JSONFault(f"{name} is no JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
