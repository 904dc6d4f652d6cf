"""Key names: the keys of the settings that an error names by their spec's class and field."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from agentrl.algorithms import ALGORITHMS, AlgorithmSettings
from agentrl.config.schema import RunConfig
from agentrl.types.section import Section, sections_within

__all__ = ["with_keys"]

_FIELD = re.compile(r"\b([A-Z]\w+)\.([a-z]\w*)\b")


def with_keys(message: str) -> str:
    """``message`` with ``optim.lr`` where it says ``OptimSpec.lr``, also in a text that came from another process.

    Below ``run`` an error names a setting by its spec's class and field, as a user of Python knows it.
    """
    return _FIELD.sub(_key, message)


def _key(named: re.Match[str]) -> str:
    prefix = _prefixes().get(named[1])
    return named[0] if prefix is None else f"{prefix}.{named[2]}"


@functools.cache
def _prefixes() -> Mapping[str, str]:
    """Where each section's fields are, by the name of its class."""
    prefixes = {section.__name__: key for key, section in sections_within(RunConfig)}
    kinds: list[type[Section]] = [AlgorithmSettings, *(row.settings for row in ALGORITHMS.values())]
    for kind in kinds:
        prefixes[kind.__name__] = "algorithm"
        prefixes |= {s.__name__: f"algorithm.{key}" for key, s in sections_within(kind)}
    return prefixes
