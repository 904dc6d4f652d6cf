"""Invariant 11: the ledger's equation holds at every line, after any kill, and after resume."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from agentrl.controller.ledger import Ledger
from agentrl.errors import StoreError

OPEN = ("running", "finished", "buffered", "taken")


def history(path: Path, seed: int) -> list[tuple[int, int]]:
    """A run of many draws with every outcome, of two policies that are trained by the same groups;
    (rows, step) of its checkpoints."""
    rng, ledger, checkpoints = random.Random(seed), Ledger(path), []
    group_index = 0
    for step in range(1, 6):
        taken = []
        for policy in ("main", "guard") * 3:
            rollout_indices = list(range(3))
            ledger.issue(policy, group_index, 3)
            lost = [s for s in rollout_indices if rng.random() < 0.2]
            ledger.move(
                policy,
                group_index,
                lost,
                rng.choice(["failed", "cancelled"]),
                reason="engine",
            )
            rest = [s for s in rollout_indices if s not in lost]
            ledger.move(policy, group_index, rest, "finished")
            if rng.random() < 0.3:
                ledger.move(policy, group_index, rest, "dropped", reason="zero_std")
            else:
                ledger.move(policy, group_index, rest, "buffered")
                if rng.random() < 0.8:
                    ledger.move(policy, group_index, rest, "taken", step=step)
                    taken.append((policy, group_index, rest))
            group_index += policy == "guard"
        for one in taken:
            ledger.move(*one, "trained", step=step)
        ledger.sync()
        checkpoints.append((ledger.offset, step))
    ledger.close()
    return checkpoints


def issued(lines: Iterable[bytes]) -> int:
    rows = [json.loads(line) for line in lines]
    return sum(len(row["rollout_indices"]) for row in rows if row["to"] == "running")


@pytest.mark.invariant
@pytest.mark.parametrize("seed", range(3))
def test_the_equation_holds_wherever_the_file_ends(tmp_path: Path, seed: int) -> None:
    whole = tmp_path / "whole.jsonl"
    history(whole, seed)
    data, torn = whole.read_bytes(), tmp_path / "ledger.jsonl"
    rng = random.Random(seed)
    for end in sorted({0, len(data), *(rng.randrange(len(data)) for _ in range(60))}):
        torn.write_bytes(data[:end])
        ledger = Ledger(torn)
        lines = torn.read_bytes().splitlines()
        assert sum(ledger.counts().values()) == issued(lines)
        assert ledger.offset == len(lines)
        ledger.close()


@pytest.mark.invariant
@pytest.mark.parametrize("seed", range(3))
def test_after_any_kill_and_resume_nothing_is_open_and_what_was_trained_by_then_stands(
    tmp_path: Path, seed: int
) -> None:
    whole = tmp_path / "whole.jsonl"
    checkpoints = history(whole, seed)
    lines = whole.read_bytes().splitlines(keepends=True)
    rng = random.Random(seed)
    for _ in range(20):
        end = rng.randrange(len(lines) + 1)
        path = tmp_path / "ledger.jsonl"
        path.write_bytes(b"".join(lines[:end]) + b'{"n":')
        offset = max([rows for rows, _ in checkpoints if rows <= end], default=0)
        ledger = Ledger(path)
        ledger.restore(offset)
        counts = ledger.counts()
        assert sum(counts.values()) == issued(path.read_bytes().splitlines())
        assert not [state for state in OPEN if counts[state]]
        stood = [json.loads(line) for line in lines[:offset]]
        assert counts["trained"] == sum(
            len(row["rollout_indices"]) for row in stood if row["to"] == "trained"
        )
        ledger.close()
        again = Ledger(path)
        assert again.counts() == counts
        again.close()


@pytest.mark.invariant
def test_a_trajectory_is_trained_once_in_a_lineage_however_often_it_is_killed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.jsonl"
    for attempt in range(4):
        ledger = Ledger(path)
        if attempt:
            ledger.restore(0)
        assert ledger.attempt == attempt
        for group_index in range(3):
            ledger.issue("main", group_index, 2)
            for state in ("finished", "buffered", "taken"):
                ledger.move("main", group_index, [0, 1], state)
            ledger.move("main", group_index, [0, 1], "trained", step=group_index + 1)
            with pytest.raises(StoreError, match="was trained before"):
                ledger.issue("main", group_index, 2)
        ledger.close()
    counts = Ledger(path).counts()
    assert counts == {"trained": 6, "rolled_back": 18}
