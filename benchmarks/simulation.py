"""Simulation: seeds of the controller's code without a broken rule, trajectories a second, and
seeds until each planted bug is found (``python -m benchmarks.simulation``).

``--seeds FIRST END`` takes others; the first that breaks a rule is made smaller and told.
``--mutants 0`` leaves the planted bugs out.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time
from collections import Counter

from benchmarks.figures import Figures, add_arguments
from tests.simulation.search import MUTANTS, made_smaller, seeds_to_find, simulate
from tests.simulation.world import BrokenRuleError

SPEED = 1000.0
MOST_SEEDS = 1000


def main() -> int:
    """Measures what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seeds", nargs=2, type=int, default=(0, 10_000), metavar=("FIRST", "END")
    )
    parser.add_argument(
        "--mutants", type=int, default=len(MUTANTS), help="planted bugs to find"
    )
    add_arguments(parser, benchmark="simulation")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    # as the tests do: no search for garbage walks through all that was imported
    gc.collect()
    gc.freeze()
    first, end = arguments.seeds
    figures = Figures()
    counts: Counter[str] = Counter()
    broken = 0
    start = time.process_time()
    for seed in range(first, end):
        try:
            counts += simulate(seed)
        except BrokenRuleError:
            broken += 1
            scenario, rule = made_smaller(seed)
            figures.note(f"seed {seed}, made smaller: {scenario.told()}: {rule}")
    seconds = time.process_time() - start
    figures.at_most(f"broken rules in seeds {first} to {end}", broken, "", 0)
    figures.at_least(
        "trajectories a second of a core", counts["trajectories"] / seconds, "", SPEED
    )
    for name in ("faults", "drivers", "failed_checkpoints"):
        figures.report(name.replace("_", " "), counts[name], "")
    for patch in MUTANTS[: arguments.mutants]:
        seeds = seeds_to_find(patch, MOST_SEEDS)
        name = patch.stem.replace("_", " ")
        figures.at_most(f"seeds to find: {name}", seeds or MOST_SEEDS + 1, "", MOST_SEEDS)
    return figures.finish(arguments, seeds=[first])


if __name__ == "__main__":
    sys.exit(main())
