from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.controller.ledger import Ledger
from agentrl.errors import StoreError


def _trained(ledger: Ledger, group_index: int, step: int) -> None:
    ledger.issue(group_index, 2)
    for state in ("finished", "buffered", "taken"):
        ledger.move(group_index, [0, 1], state)
    ledger.trained({group_index: [0, 1]}, step)


def test_every_issued_trajectory_is_in_exactly_one_state(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    _trained(ledger, 0, step=1)
    ledger.issue(1, 3)
    ledger.move(1, [2], "failed", reason="sandbox")
    ledger.move(1, [0, 1], "finished")
    ledger.move(1, [0, 1], "dropped", reason="zero_std")
    assert ledger.counts() == {"trained": 2, "failed": 1, "dropped": 2}


def test_a_trajectory_is_never_trained_twice(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    _trained(ledger, 0, step=1)
    with pytest.raises(StoreError, match="cannot go from trained to trained"):
        ledger.trained({0: [0]}, 2)
    with pytest.raises(StoreError, match="group 0 was trained before"):
        ledger.issue(0, 2)


def test_it_reads_back_what_it_wrote_and_cuts_off_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    _trained(ledger, 0, step=1)
    ledger.issue(1, 1)
    ledger.close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"n":6,"attempt":0,"dra')
    again = Ledger(path)
    assert again.counts() == {"trained": 2, "running": 1}
    assert path.read_bytes() == whole


def test_a_restore_rolls_back_what_came_later_and_what_was_open(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    _trained(ledger, 0, step=1)
    ledger.issue(1, 1)  # open at the checkpoint
    offset = ledger.offset
    for state in ("finished", "buffered", "taken"):
        ledger.move(1, [0], state)
    ledger.trained({1: [0]}, 2)
    ledger.issue(2, 1)
    ledger.restore(offset)
    assert ledger.counts() == {"trained": 2, "rolled_back": 2}
    ledger.issue(1, 1)  # its training was rolled back, so it may be issued again
    assert ledger.attempt == 1
    assert ledger.counts() == {"trained": 2, "rolled_back": 2, "running": 1}


def test_a_row_that_is_no_ledger_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"n":0,"attempt":0,"group_index":0,"rollout_indices":[0],"to":"sleeping"}\n')
    with pytest.raises(StoreError, match="row 0 is no ledger row"):
        Ledger(path)
