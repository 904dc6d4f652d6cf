"""JSON text: standard JSON of whatever environments, models and tools hand over.

What JSON has no word for is marked, never dropped: a NaN or infinity becomes ``{"$float": "nan"}``
and comes back as the number; an ``Image`` becomes ``{"$image": {"sha256": ...}}``, a ``Blob``
``{"$blob": {"sha256": ...}}``, and each comes back as one, without its bytes; an object that is no
JSON value, or an integer of more digits than Python writes, becomes
``{"$repr": "<type>: <repr>"}`` and comes back as that mapping. Numpy numbers and arrays become
numbers and lists.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from agentrl.guards.parsing import nested_too_deeply, parse_json
from agentrl.types import Blob, Image
from agentrl.types.user_code.values import shown

_IMAGE_FIELDS = tuple(field.name for field in fields(Image) if field.name != "data")
_BLOB_FIELDS = tuple(field.name for field in fields(Blob) if field.name != "data")
_MAX_BYTES = 2**28
_MAX_DEPTH = 64
_MAX_REPR = 1000
_FLOAT = "$float"
_IMAGE = "$image"
_BLOB = "$blob"
_EMPTY = {type(None): "null", dict: "{}", list: "[]", tuple: "[]"}
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def to_json(value: Any) -> str:
    """``value`` on one line of standard JSON that can be encoded in UTF-8."""
    empty = _EMPTY.get(type(value))
    # most columns of most trajectories
    if empty is not None and not value:
        return empty
    try:
        text = _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError):
        # a NaN, a key that is no string, too long an integer, or a cycle: rare, so that only these
        # pay for a walk
        value = _storable(value, 0)
        text = _ENCODER.encode(value)
    # nobody could read it
    if nested_too_deeply(text):
        value = _storable(value, 0)
        text = _ENCODER.encode(value)
    if text.isascii():
        return text
    try:
        text.encode()
    # half of a surrogate pair, which only an escape can carry
    except UnicodeEncodeError:
        return _ASCII_ENCODER.encode(value)
    return text


def sorted_json(value: Any) -> str:
    """A text that is equal for equal values, whatever they are."""
    try:
        return _SORTED_ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError):
        # Such as keys of two kinds, which have no order: as it is stored.
        return _SORTED_ENCODER.encode(from_json(to_json(value)))


def from_json(text: str | bytes) -> Any:
    """What ``to_json`` was given, with lists for tuples.

    Raises:
        ValueError: ``text`` is not JSON, or out of bounds.
    """
    text = text if isinstance(text, str) else text.decode()
    marked = _FLOAT in text or _IMAGE in text or _BLOB in text
    try:
        return parse_json(
            text, max_bytes=_MAX_BYTES, object_hook=_restore if marked else None
        )
    # an image or a blob whose fields are none
    except (TypeError, AttributeError) as error:
        raise ValueError(str(error)) from error


def _default(value: Any) -> Any:
    if isinstance(value, Mapping):
        try:
            return dict(value)
        except Exception:  # noqa: BLE001
            # The boundary: a mapping of a user's class, such as one that is closed by now.
            return _marked(value)
    if isinstance(value, Image):
        return {_IMAGE: {name: getattr(value, name) for name in _IMAGE_FIELDS}}
    if isinstance(value, Blob):
        return {_BLOB: {name: getattr(value, name) for name in _BLOB_FIELDS}}
    if isinstance(value, np.generic | np.ndarray):
        plain = value.tolist()
        return (
            plain if isinstance(plain, bool | int | float | str | list) else _marked(value)
        )
    return _marked(value)


def _marked(value: Any) -> dict[str, str]:
    return {"$repr": f"{type(value).__name__}: {shown(value, _MAX_REPR)}"}


def _storable(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return _marked(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_FLOAT: str(float(value))}
    if isinstance(value, int):
        return value if _is_short(value) else _marked(value)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else shown(key, _MAX_REPR, str): _storable(
                item, depth + 1
            )
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_storable(item, depth + 1) for item in value]
    return _storable(_default(value), depth)


def _is_short(number: int) -> bool:
    """Whether Python writes an integer, and reads it back."""
    try:
        int.__repr__(number)
    except ValueError:
        return False
    return True


def _restore(mapping: dict[str, Any]) -> Any:
    if len(mapping) == 1 and mapping.get(_FLOAT) in _NON_FINITE:
        return _NON_FINITE[mapping[_FLOAT]]
    if len(mapping) != 1:
        return mapping
    record = mapping.get(_IMAGE)
    if isinstance(record, dict) and tuple(record) == _IMAGE_FIELDS:
        return Image(**record)
    record = mapping.get(_BLOB)
    if isinstance(record, dict) and tuple(record) == _BLOB_FIELDS:
        return Blob(**record)
    return mapping


_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_default
)
_ASCII_ENCODER = json.JSONEncoder(
    ensure_ascii=True, allow_nan=False, separators=(",", ":"), default=_default
)
_SORTED_ENCODER = json.JSONEncoder(
    sort_keys=True, default=lambda value: shown(value, sys.maxsize, str)
)
