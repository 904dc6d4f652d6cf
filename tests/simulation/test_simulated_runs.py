"""Simulated runs: no seed breaks a rule, a seed replays exactly, and each planted bug is found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.search import (
    MUTANTS,
    ROOT,
    found,
    made_smaller,
    seeds_to_find,
    simulate,
)
from tests.simulation.world import Scenario, World

MOST_SEEDS = 1000
KEPT = {
    1390: "a worker that waits for a machine is started again during a setup",
    4515: "a setup waits for a worker that finds no machine, though others play",
}
"""Seeds that once broke a rule, and by what."""


@pytest.mark.invariant
@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_no_seed_breaks_a_rule(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + 50):
        counts += simulate(seed)
    # the drivers were killed, interrupted, and lost their disk; each of them was resumed
    assert counts["drivers"] > 50 + counts["RunInterruptedError"] + counts["StoreError"]
    assert min(counts["RunInterruptedError"], counts["failed_checkpoints"]) > 0
    assert counts["faults"] > 50
    assert min(counts["joined_workers"], counts["drained_nodes"]) > 0


@pytest.mark.parametrize("seed", KEPT)
def test_what_was_found_stays_mended(seed: int) -> None:
    assert found(seed) is None


@pytest.mark.slow
def test_a_seed_replays_exactly(tmp_path: Path) -> None:
    """Each row of its ledger, in a process with other hashes too."""
    program = (
        "import hashlib, sys; from pathlib import Path; from tests.simulation.world import World; "
        "world = World(Path(sys.argv[1]), 0); counts = world.run(); "
        "rows = (world.driver.folder / 'ledger.jsonl').read_bytes(); "
        "print(sorted(counts.items()), hashlib.sha256(rows).hexdigest())"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / seed)],
            check=True,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]
    assert "drivers" in told[0]


def test_what_breaks_a_rule_is_found_and_made_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from agentrl.controller.admission import Backlog

    sound = Backlog.take

    def takes_again(self: Backlog, step: int) -> list[object]:
        waiting = list(self._waiting)
        taken = sound(self, step)
        self._waiting = waiting
        return taken  # type: ignore[return-value]

    monkeypatch.setattr(Backlog, "take", takes_again)
    seed = next(seed for seed in range(MOST_SEEDS) if found(seed) is not None)
    scenario, violation = made_smaller(seed)
    assert "from taken to" in str(violation) or "trained" in str(violation)
    whole = World(Path(), seed).scenario
    assert scenario != whole
    assert "faults: none" in scenario.told()


def test_a_scenario_has_one_thing_less_at_a_time() -> None:
    whole = next(
        scenario
        for scenario in (World(Path(), seed).scenario for seed in range(100))
        if scenario.num_workers > 1 and scenario.stage.rollout.group_size > 1
    )
    smaller = list(whole.smaller())
    assert all(isinstance(one, Scenario) and one != whole for one in smaller)
    assert any(one.num_workers < whole.num_workers for one in smaller)
    assert any(
        one.stage.rollout.group_size < whole.stage.rollout.group_size for one in smaller
    )


@pytest.mark.tooling
@pytest.mark.parametrize("patch", MUTANTS, ids=lambda path: path.stem)
def test_a_planted_bug_is_found(patch: Path) -> None:
    assert seeds_to_find(patch, MOST_SEEDS) is not None
