"""Parsers: times parsers on adversarial texts, which the policy can write.

``python -m benchmarks.parsers`` reads each text of ``benchmarks/parsing`` with every parser of
agentrl, and says of each text how long the slowest of them takes, and what it takes for twice the
text.
"""

from __future__ import annotations

import argparse
import sys
import time

from agentrl.tools.parsers import ToolCallParser
from benchmarks.figures import Figures, add_arguments
from benchmarks.parsing import PARSERS, TEXTS, of_length

__all__ = ["main", "seconds"]

CHARACTERS = 128 * 1024
LIMIT_MS = 50.0
REPEATS = 3

NOTE = (
    "The best of three readings, in processor time of the thread. Linear time gives a ratio near "
    "2 for twice the text; small times scatter."
)


def seconds(parser: ToolCallParser, text: str, repeats: int = REPEATS) -> float:
    """Processor seconds of the fastest of some readings."""
    taken = []
    for _ in range(repeats):
        start = time.thread_time()
        parser.parse(text)
        taken.append(time.thread_time() - start)
    return min(taken)


def measure(figures: Figures, characters: int) -> None:
    """A row a text, of the parser that is slowest on it."""
    slowest = 0.0
    for name in TEXTS:
        text = of_length(name, characters)
        twice = of_length(name, 2 * characters)
        took = {label: seconds(parser(), text) for label, parser in PARSERS.items()}
        label = max(took, key=lambda one: took[one])
        figures.at_most(f"{name} ({label})", 1000 * took[label], "ms", LIMIT_MS)
        figures.report(
            f"{name} ({label}): twice the text",
            seconds(PARSERS[label](), twice) / took[label],
            "x",
        )
        slowest = max(slowest, took[label])
    figures.at_most(
        f"slowest of {len(TEXTS)} texts by {len(PARSERS)} parsers",
        1000 * slowest,
        "ms",
        LIMIT_MS,
    )
    figures.report("characters of a text", characters, "")
    figures.note(NOTE)


def main(arguments: list[str] | None = None) -> int:
    """All of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser, benchmark="parsers")
    parser.add_argument("--characters", type=int, default=CHARACTERS)
    parsed = parser.parse_args(arguments)
    figures = Figures()
    measure(figures, parsed.characters)
    return figures.finish(parsed, seeds=[])


if __name__ == "__main__":
    sys.exit(main())
