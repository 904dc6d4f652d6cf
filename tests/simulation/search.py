"""Search: simulates runs seed by seed; one that breaks a rule is made smaller."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.simulation.world import BrokenRuleError, Scenario, World

ROOT = Path(__file__).parents[2]
MUTANTS = sorted((Path(__file__).parent / "mutants").glob("*.patch"))
"""Planted bugs, peers' own among them."""


def simulate(seed: int, scenario: Scenario | None = None) -> Counter[str]:
    """One run; its counts.

    Raises:
        BrokenRuleError: a rule is broken.
    """
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        return World(Path(folder) / "run", seed, scenario).run()


def found(seed: int, scenario: Scenario | None = None) -> BrokenRuleError | None:
    """What a seed breaks."""
    try:
        simulate(seed, scenario)
    except BrokenRuleError as violation:
        return violation
    return None


def made_smaller(seed: int) -> tuple[Scenario, BrokenRuleError]:
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


def seeds_to_find(patch: Path, most: int) -> int | None:
    """Seeds until a planted bug is found, in a copy of the code and another process; None where it
    is not within ``most``."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for own in ("agentrl", "tests/simulation"):
            shutil.copytree(ROOT / own, copy / own)
        (copy / "tests" / "__init__.py").touch()
        subprocess.run(["patch", "-sp1", "-i", str(patch)], check=True, cwd=copy)
        program = (
            "import logging, sys; from tests.simulation.search import found; "
            "logging.disable(logging.CRITICAL); "
            f"seeds = (n for n in range({most}) if found(n) is not None); "
            "sys.stdout.write(str(next(seeds, None)))"
        )
        command = [sys.executable, "-c", program]
        told = subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=copy
        ).stdout
    return None if told == "None" else int(told) + 1
