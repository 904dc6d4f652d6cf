"""Search: simulates runs seed by seed; the first that breaks a rule is made smaller, and told with
the command that replays it.

    python -m tests.simulation.search 0 1000            # these seeds
    python -m tests.simulation.search 17 18 --trace     # one, with each row of its ledger
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.simulation.world import Scenario, Violation, World


def simulate(seed: int, scenario: Scenario | None = None) -> Counter[str]:
    """One run; its counts.

    Raises:
        Violation: a rule is broken.
    """
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        return World(Path(folder) / "run", seed, scenario).run()


def found(seed: int, scenario: Scenario | None = None) -> Violation | None:
    """What a seed breaks."""
    try:
        simulate(seed, scenario)
    except Violation as violation:
        return violation
    return None


def made_smaller(seed: int) -> tuple[Scenario, Violation]:
    """The smallest scenario that still breaks a rule by a seed which does, by taking one thing away
    at a time."""
    scenario = World(Path(), seed).scenario
    violation = found(seed, scenario)
    assert violation is not None, "the seed breaks a rule"
    going = True
    while going:
        going = False
        for smaller in scenario.smaller():
            if (other := found(seed, smaller)) is not None:
                scenario, violation, going = smaller, other, True
                break
    return scenario, violation


def main() -> int:
    """Searches the seeds of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("end", type=int)
    parser.add_argument("--whole", action="store_true", help="do not make the scenario smaller")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    start, counts = time.perf_counter(), Counter[str]()
    for seed in range(given.first, given.end):
        violation: Violation | None
        try:
            counts += simulate(seed)
            continue
        except Violation as broken:
            violation = broken
        print(f"seed {seed} of {given.end - given.first}: {violation}")
        if not given.whole:
            scenario, violation = made_smaller(seed)
            print(f"made smaller: {scenario.told()}: {violation}")
        print(f"replay: python -m tests.simulation.search {seed} {seed + 1}")
        return 1
    seconds = time.perf_counter() - start
    counts["trajectories_a_second"] = round(counts["trajectories"] / seconds)
    print(f"{given.end - given.first} seeds break no rule:", dict(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
