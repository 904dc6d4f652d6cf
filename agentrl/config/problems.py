"""What is wrong with a configuration: every fault with its place, its key, the rule and the value
found.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault.

    Args:
        place: where it was written, such as ``config.yaml:12:3`` or ``command line: a.b=1``.
        message: the key, the rule, the value found, and the remedy.
        position: line and column in the file, by which problems are listed; those of the command
            line come last.
    """

    place: str
    message: str
    position: tuple[int, int] = (sys.maxsize, 0)

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


def raise_problems(problems: Sequence[Problem]) -> None:
    """Raises one ConfigError that lists every distinct problem, if there is any."""
    lines = list(
        dict.fromkeys(
            str(problem) for problem in sorted(problems, key=lambda problem: problem.position)
        )
    )
    if len(lines) == 1:
        raise ConfigError(lines[0])
    if lines:
        raise ConfigError("\n  ".join([f"{len(lines)} problems in the configuration:", *lines]))
