"""Parsing: JSON and YAML of others become values of bounded size and depth, in linear time."""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from agentrl.guards.secret_mask import beginning

MAX_DEPTH = 128
"""Levels of a value. Whatever walks, copies or writes one recurses, and Python gives up at some
900.
"""

MAX_BYTES = 64 * 2**20
# The last quote may be missing: each of a text that nothing closes would begin a search to its end.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NO_BRACKET = bytes(code for code in range(256) if chr(code) not in "[]{}")


def parse_json(
    text: str | bytes,
    *,
    max_bytes: int = MAX_BYTES,
    max_nodes: int | None = None,
    object_hook: Callable[[dict[str, Any]], Any] | None = None,
    finite: bool = False,
) -> Any:
    """The value of a JSON text.

    Args:
        text: the text; bytes are UTF-8.
        max_bytes: of ``text``; characters, where it is no bytes.
        max_nodes: values in it; None for as many as the bytes hold.
        object_hook: as ``json.loads`` takes it.
        finite: refuse NaN, Infinity and numbers that are too large for a float.

    Raises:
        ValueError: it is no JSON, too long, of too many values, or nested by more than
            ``MAX_DEPTH`` levels.
    """
    if len(text) > max_bytes:
        raise ValueError(f"it must have at most {max_bytes:,} bytes, got {len(text):,}")
    text = text if isinstance(text, str) else text.decode()
    if nested_too_deeply(text):
        raise ValueError(f"it is nested by more than {MAX_DEPTH} levels")
    if max_nodes is not None and _count(text) > max_nodes < _count(_STRING.sub("", text)):
        raise ValueError(f"it must have at most {max_nodes:,} values")
    if not finite:
        return json.loads(text, object_hook=object_hook)
    return json.loads(
        text, object_hook=object_hook, parse_constant=_no_constant, parse_float=_finite
    )


def mapping(value: object) -> Mapping[str, Any]:
    """The mapping that a value is; an empty one where it is something else."""
    return value if isinstance(value, Mapping) else {}


def extent(value: Any, most: int) -> tuple[int, int]:
    """How many values a tree of mappings and lists has, and how many levels; what stands there
    several times counts as often.

    Raises:
        ValueError: it has more than ``most`` values, or than ``MAX_DEPTH`` levels.
    """
    num_values = 0
    depth = 0
    level: list[Any] = [value]
    while level:
        num_values += len(level)
        depth += 1
        if num_values > most:
            raise ValueError(f"it must have at most {most:,} values")
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested by more than {MAX_DEPTH} levels")
        level = [inner for outer in level for inner in within(outer)]
    return num_values, depth


def within(value: Any) -> Collection[Any]:
    """The values of a mapping or list; none of anything else."""
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def nested_too_deeply(text: str) -> bool:
    """Whether a JSON text has more than ``MAX_DEPTH`` levels."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    bare = _STRING.sub("", text).encode("utf-8", "replace").translate(None, _NO_BRACKET)
    brackets = np.frombuffer(bare, np.uint8)
    opens = (brackets == ord("[")) | (brackets == ord("{"))
    return bool(np.cumsum(np.where(opens, 1, -1)).max(initial=0) > MAX_DEPTH)


def _count(text: str) -> int:
    return text.count(",") + text.count("[") + text.count("{") + 1


# Some seconds.
_MAX_YAML_BYTES = 2**19
_MAX_NODES = 200_000


def parse_yaml(text: bytes) -> Any:
    """The value of a YAML text: mappings, lists and scalars.

    An alias that would multiply what it stands for counts as often as it is used.

    Raises:
        ValueError: it is no YAML, has a tag of its own, or is too large or too deep.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    if len(text) > _MAX_YAML_BYTES:
        raise ValueError(
            f"it must have at most {_MAX_YAML_BYTES:,} bytes, got {len(text):,}"
        )
    if nested_too_deeply(text.decode()):
        raise ValueError(f"it is nested by more than {MAX_DEPTH} levels")
    try:
        value = YAML(typ="safe", pure=True).load(text.decode())
    except YAMLError as error:
        raise ValueError(f"it is no YAML: {beginning(str(error).strip(), 300)}") from error
    except RecursionError:
        raise ValueError(f"it is nested by more than {MAX_DEPTH} levels") from None
    extent(value, _MAX_NODES)
    return value


_STRICT_DEPTH = 64
_TOO_DEEP = f"it is nested too deeply, by more than {_STRICT_DEPTH} levels"
_SPACE = re.compile(r"[ \t\n\r]*")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
_DIGITS = re.compile(r"\d{2,}+")
_BEGINS = re.compile(r'["\[{]|-?\d|true|false|null|NaN|-?Infinity')
_WINDOW = 512
_GROWTH = 8
_LONGEST_TOKEN = 16


# No error by name: it is what a text has, not what a program does.
class JSONFault(ValueError):  # noqa: N818
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

    Stricter than ``json.loads``: NaN, Infinity and a number as large (1e999), a key given twice,
    half of a surrogate pair, and more than 64 levels are faults, since each would be lost or
    refused further on.

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
            raise JSONFault(
                r"a \ud800-\udfff escape stands without its other half", end
            ) from None
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
        except _InputRefusedError as error:
            raise JSONFault(str(error), begin + _readable(window)) from None
        except ValueError as error:
            # A whole number of thousands of digits.
            longest = sys.get_int_max_str_digits()
            position = next(
                (
                    m.end()
                    for m in _DIGITS.finditer(window)
                    if m.end() - m.start() > longest
                ),
                len(window),
            )
            raise JSONFault(str(error).partition(";")[0], begin + position) from None
        else:
            # A number at the end of the window may go on behind it.
            if whole or end < size:
                return value, end
        size *= _GROWTH


def _readable(window: str) -> int:
    """How far Python's own rules read what ours refuse."""
    try:
        return _LENIENT.raw_decode(window)[1]
    except json.JSONDecodeError as error:
        return error.pos


def _check_depth(window: str, begin: int) -> None:
    """Refuses what is nested too deeply before the decoder goes down into it."""
    if (
        not window.startswith(("[", "{"))
        or window.count("[") + window.count("{") <= _STRICT_DEPTH
    ):
        return
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(window):
        bracket = match.group()
        if bracket in "[{":
            depth += 1
            if depth > _STRICT_DEPTH:
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
        raise _InputRefusedError(f"the key {twice!r} is given twice")
    return value


def _no_constant(name: str) -> Any:
    raise _InputRefusedError(f"{name} is no JSON number")


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise _InputRefusedError(f"{number[:40]} is too large for a number")
    return value


class _InputRefusedError(ValueError):
    """What Python's own decoder would let through."""


_STRICT = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
)
# The length of a whole number's text, which may be any.
_LENIENT = json.JSONDecoder(parse_int=len)
