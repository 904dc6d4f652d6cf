"""Viewer: the store's writer and reads, and what else the replay viewer stands on.

``python -m benchmarks.viewer`` measures all of it, ``--only`` one part. Each part is shown, and
recorded in a file of its own, as soon as it is measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.figures import Figures, add_arguments, measure_parts
from benchmarks.viewers import (
    behaviour,
    blame,
    group,
    index,
    kills,
    live,
    page,
    replay,
    selection,
    start,
    writer,
)

__all__ = ["PARTS"]

PARTS: dict[str, Callable[[Figures, argparse.Namespace], None]] = {
    "writer": writer.measure,
    "selection": selection.measure,
    "page": page.measure,
    "group": group.measure,
    "index": index.measure,
    "start": start.measure,
    "live": live.measure,
    "behaviour": behaviour.measure,
    "blame": blame.measure,
    "replay": replay.measure,
    "kills": kills.measure,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.viewer", description=__doc__
    )
    parser.add_argument(
        "--only",
        choices=PARTS,
        action="append",
        help="one part; may be given several times",
    )
    parser.add_argument(
        "--trajectories", type=int, default=100_000, help="of the large run (100,000)"
    )
    parser.add_argument(
        "--runs",
        type=Path,
        metavar="FOLDER",
        help="keep the large run there, and use it again",
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="in which trajectories arrive live (60)"
    )
    parser.add_argument("--seed", type=int, default=0)
    add_arguments(parser, benchmark="viewer")
    arguments = parser.parse_args(argv)
    return measure_parts(PARTS, arguments)


if __name__ == "__main__":
    sys.exit(main())
