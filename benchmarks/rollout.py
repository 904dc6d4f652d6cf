"""Rollouts: the engine alone, slow tools, and thousands of episodes in flight.

``python -m benchmarks.rollout`` measures all of it, ``--only`` one part. Each part is shown, and
recorded in a file of its own, as soon as it is measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from benchmarks import fuzz_tokens
from benchmarks.figures import Figures, add_arguments, measure_parts
from benchmarks.rollouts import engine, in_flight, tool_latency

__all__ = ["PARTS"]

PARTS: dict[str, Callable[[Figures, argparse.Namespace], None]] = {
    "engine": engine.measure,
    "tool_latency": tool_latency.measure,
    "in_flight": in_flight.measure,
    "fuzz_tokens": fuzz_tokens.measure,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rollout", description=__doc__
    )
    parser.add_argument(
        "--only",
        choices=PARTS,
        action="append",
        help="one part; may be given several times",
    )
    parser.add_argument(
        "--episodes",
        type=int,
        default=2048,
        help="of a stream with slow or instant tools (2048)",
    )
    parser.add_argument("--seed", type=int, default=0)
    add_arguments(parser, benchmark="rollout")
    arguments = parser.parse_args(argv)
    return measure_parts(PARTS, arguments)


if __name__ == "__main__":
    sys.exit(main())
