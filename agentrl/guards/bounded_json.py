"""Bounded JSON: a text becomes a value of bounded size and depth, or a ValueError."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

MAX_DEPTH = 128
"""Levels of a value. Whatever walks, copies or writes one recurses, and Python gives up at some
900.
"""

MAX_BYTES = 64 * 2**20
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NO_BRACKET = bytes(code for code in range(256) if chr(code) not in "[]{}")


def parse_json(
    text: str | bytes,
    *,
    max_bytes: int = MAX_BYTES,
    max_nodes: int | None = None,
    object_hook: Callable[[dict[str, Any]], Any] | None = None,
    parse_constant: Callable[[str], Any] | None = None,
) -> Any:
    """The value of a JSON text.

    Args:
        text: the text; bytes are UTF-8.
        max_bytes: of ``text``; characters, where it is no bytes.
        max_nodes: values in it; None for as many as the bytes hold.
        object_hook, parse_constant: as ``json.loads`` takes them.

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
    return json.loads(text, object_hook=object_hook, parse_constant=parse_constant)


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
