"""Bounded YAML: a text becomes a value of plain types and of bounded size, or a ValueError."""

from __future__ import annotations

from typing import Any

from agentrl.guards.bounded_json import MAX_DEPTH, extent, nested_too_deeply

# Some seconds.
_MAX_BYTES = 2**19
_MAX_NODES = 200_000


def parse_yaml(text: bytes) -> Any:
    """The value of a YAML text: mappings, lists and scalars.

    An alias that would multiply what it stands for counts as often as it is used.

    Raises:
        ValueError: it is no YAML, has a tag of its own, or is too large or too deep.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    if len(text) > _MAX_BYTES:
        raise ValueError(f"it must have at most {_MAX_BYTES:,} bytes, got {len(text):,}")
    if nested_too_deeply(text.decode()):
        raise ValueError(f"it is nested by more than {MAX_DEPTH} levels")
    try:
        value = YAML(typ="safe", pure=True).load(text.decode())
    except YAMLError as error:
        raise ValueError(f"it is no YAML: {str(error).strip()[:300]}") from error
    except RecursionError:
        raise ValueError(f"it is nested by more than {MAX_DEPTH} levels") from None
    extent(value, _MAX_NODES)
    return value
