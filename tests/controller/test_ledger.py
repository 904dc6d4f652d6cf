from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.controller.ledger import Ledger, ledger_rows, trained_batches
from agentrl.errors import StoreError


def _trained(ledger: Ledger, group_index: int, step: int) -> None:
    ledger.issue("main", group_index, 2)
    for state in ("finished", "buffered", "taken"):
        ledger.move("main", group_index, [0, 1], state)
    ledger.move("main", group_index, [0, 1], "trained", step=step)


def test_every_issued_trajectory_is_in_exactly_one_state(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    _trained(ledger, 0, step=1)
    ledger.issue("main", 1, 3)
    ledger.move("main", 1, [2], "failed", reason="sandbox")
    ledger.move("main", 1, [0, 1], "finished")
    ledger.move("main", 1, [0, 1], "dropped", reason="zero_std")
    assert ledger.counts() == {"trained": 2, "failed": 1, "dropped": 2}


def test_a_trajectory_is_never_trained_twice(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    _trained(ledger, 0, step=1)
    with pytest.raises(StoreError, match="cannot go from trained to trained"):
        ledger.move("main", 0, [0], "trained", step=2)
    with pytest.raises(StoreError, match="group 0 was trained before"):
        ledger.issue("main", 0, 2)


def test_a_row_names_the_policy_and_each_policy_has_states_of_its_own(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    for policy in ("main", "guard"):  # both are to be trained by one group
        ledger.issue(policy, 0, 1, stage="rl")
        for state in ("finished", "buffered", "taken"):
            ledger.move(policy, 0, [0], state, step=1)
    ledger.move("main", 0, [0], "trained", step=1)
    ledger.move("guard", 0, [0], "dropped", reason="zero_std")
    ledger.sync()
    assert ledger.counts() == {"trained": 1, "dropped": 1}
    rows = list(ledger_rows(path))
    assert [row["policy"] for row in rows] == ["main"] * 4 + ["guard"] * 4 + [
        "main",
        "guard",
    ]
    assert trained_batches(path, "rl", "main") == {1: {0: [0]}}
    assert trained_batches(path, "rl", "guard") == {}
    with pytest.raises(StoreError, match="from trained to taken for policy 'main'"):
        ledger.move("main", 0, [0], "taken")


def test_it_reads_back_what_it_wrote_and_cuts_off_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    _trained(ledger, 0, step=1)
    ledger.issue("main", 1, 1)
    ledger.close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"n":6,"attempt":0,"dra')
    again = Ledger(path)
    assert again.counts() == {"trained": 2, "running": 1}
    assert path.read_bytes() == whole


def test_a_restore_rolls_back_what_came_later_and_what_was_open(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    _trained(ledger, 0, step=1)
    ledger.issue("main", 1, 1)  # open at the checkpoint
    offset = ledger.offset
    for state in ("finished", "buffered", "taken"):
        ledger.move("main", 1, [0], state)
    ledger.move("main", 1, [0], "trained", step=2)
    ledger.issue("main", 2, 1)
    ledger.restore(offset)
    assert ledger.counts() == {"trained": 2, "rolled_back": 2}
    ledger.issue("main", 1, 1)  # its training was rolled back, so it may be issued again
    assert ledger.attempt == 1
    assert ledger.counts() == {"trained": 2, "rolled_back": 2, "running": 1}


_ROW = '{"n":0,"attempt":0,"policy":"main","group_index":0,"rollout_indices":[0],"to":"sleeping"}'


@pytest.mark.parametrize("row", [_ROW, _ROW.replace('"policy":"main",', ""), "[]", "7"])
def test_a_row_that_is_no_ledger_row_is_named(tmp_path: Path, row: str) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text(f"{row}\n")
    with pytest.raises(StoreError, match="row 0 is no ledger row"):
        Ledger(path)
