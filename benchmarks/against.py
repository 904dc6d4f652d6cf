"""Against: another benchmark in this checkout of the repository and in another one, in turns.

``python -m benchmarks.against FOLDER rollout --only engine`` runs ``python -m benchmarks.rollout
--only engine`` in this checkout and in the one at FOLDER, several times each, and compares the
medians of each figure that is a time, a memory or a speed. A ratio above 1 says that this checkout
is slower or larger. ``benchmarks.step`` compares step by step, by its own ``--against``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.figures import ROOT, Figures, add_arguments

__all__ = ["compare", "measured", "ratio_of"]

SLOWER = 1.03
"""What a change may cost."""

LESS_IS_BETTER = ("s", "ms", "us", "KiB", "MiB", "GiB")


def measured(
    root: Path, benchmark: str, arguments: Sequence[str]
) -> dict[str, tuple[float, str]]:
    """Runs a benchmark of a checkout; value and unit of each figure, by name.

    Raises:
        RuntimeError: it wrote no figures. A target that it missed is no failure here.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        command = [sys.executable, "-m", f"benchmarks.{benchmark}", *arguments]
        environment = os.environ | {"PYTHONPATH": str(root)}
        done = subprocess.run([*command, "--json", str(file)], cwd=root, env=environment)
        if not file.is_file():
            raise RuntimeError(
                f"benchmarks.{benchmark} of {root} ended with {done.returncode} and wrote no "
                "figures; its message is above"
            )
        return {
            row["name"]: (row["value"], row["unit"])
            for row in json.loads(file.read_text(encoding="utf-8"))
        }


def ratio_of(ours: Sequence[float], others: Sequence[float], unit: str) -> float | None:
    """How much worse the median of ``ours`` is; None for a unit that tells no cost, and where a
    median is not above 0."""
    own, other = statistics.median(ours), statistics.median(others)
    if min(own, other) <= 0:
        return None
    if unit in LESS_IS_BETTER:
        return own / other
    return other / own if unit.endswith("/s") else None


def compare(
    figures: Figures,
    ours: Sequence[Mapping[str, tuple[float, str]]],
    others: Sequence[Mapping[str, tuple[float, str]]],
) -> None:
    """Adds the ratio of each figure that all runs of both sides have."""
    for name, (_, unit) in ours[0].items():
        if not all(name in run for run in (*ours, *others)):
            continue
        sides = [[run[name][0] for run in side] for side in (ours, others)]
        ratio = ratio_of(sides[0], sides[1], unit)
        if ratio is not None:
            figures.at_most(name, ratio, "x", SLOWER)
            spread = max(sides[1]) / min(sides[1])
            figures.report(f"{name}: largest over least of the other checkout", spread, "x")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.against", description=__doc__
    )
    parser.add_argument("folder", type=Path, help="the other checkout")
    parser.add_argument(
        "other", metavar="benchmark", help="its name, and then its own options"
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side (3)")
    add_arguments(parser, benchmark="against")
    arguments, own = parser.parse_known_args(argv)
    sides: dict[Path, list[dict[str, tuple[float, str]]]]
    sides = {ROOT: [], arguments.folder.resolve(): []}
    for number in range(arguments.rounds):
        for root in list(sides) if number % 2 else list(reversed(sides)):
            print(f"-- round {number + 1}, {root}", flush=True)
            sides[root].append(measured(root, arguments.other, own))
    figures = Figures()
    compare(figures, *sides.values())
    return figures.finish(arguments, seeds=[0])


if __name__ == "__main__":
    sys.exit(main())
