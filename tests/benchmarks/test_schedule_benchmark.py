"""The schedule benchmark: what it reads of a ledger, its figures, and all of it in small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import schedule
from benchmarks.figures import Figures
from benchmarks.schedule import DECISIVE, SYNC, fates, main, slowest_tenth, tell_accuracy

pytestmark = pytest.mark.tooling


def ledger(folder: Path, *rows: tuple[int, str, dict[str, object]]) -> Path:
    """A run directory whose ledger moves one rollout of a group in each row."""
    lines = [
        {
            "n": n,
            "attempt": 0,
            "policy": "main",
            "group_index": group,
            "rollout_indices": [0],
        }
        | {"to": to, **detail}
        for n, (group, to, detail) in enumerate(rows)
    ]
    (folder / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_groups_are_trained_named_or_lost(tmp_path: Path) -> None:
    run = ledger(
        tmp_path,
        *((group, "running", {}) for group in range(6)),
        (0, "trained", {"step": 1}),
        (1, "failed", {"reason": "engine"}),
        (2, "dropped", {"reason": "zero_variance"}),
        (3, "cancelled", {"reason": "stale"}),
        (4, "dropped", {"reason": "stale"}),
        (6, "running", {}),
        (6, "trained", {"step": 2}),
        (7, "running", {}),
    )
    found = fates(run, before_step=3)
    assert list(map(sorted, (found.trained, found.named, found.lost))) == [
        [0, 6],
        [1, 2],
        [3, 4, 5],
    ]
    assert fates(run, before_step=4).lost == {3, 4, 5, 7}


def test_the_slowest_tenth_is_known_without_playing() -> None:
    slow = slowest_tenth(frozenset(range(40)), seed=0, group_size=4)
    assert len(slow) == 4
    assert 28 in slow  # one of its answers takes 56 times the median
    assert len(slowest_tenth(frozenset({3, 5}), seed=0, group_size=4)) == 1


@pytest.mark.parametrize(("waiting", "met"), [((0.90, 0.86), True), ((0.80, 0.88), False)])
def test_the_loss_is_paired_by_seed(waiting: tuple[float, float], met: bool) -> None:
    figures = Figures()
    of_both = {SYNC: {"greedy": [0.92, 0.90]}, DECISIVE: {"greedy": list(waiting)}}
    tell_accuracy(figures, of_both)
    found = {row.name: row for row in figures.rows}
    loss = found[f"greedy: sync less {DECISIVE}, mean over the seeds"]
    assert loss.value == pytest.approx(100 * (0.91 - sum(waiting) / 2))
    assert loss.met is met


def test_every_schedule_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(schedule.WAITS, "median_s", 0.01)
    inline = ("placement.mode=inline", "placement.rollout_workers=0")  # starts sooner
    chosen = {name: (*schedule.SCHEDULES[name], *inline) for name in (SYNC, DECISIVE)}
    monkeypatch.setattr(schedule, "SCHEDULES", chosen)
    told = tmp_path / "figures.json"
    few = (
        "--only",
        "speed",
        "--seeds",
        "0",
        "--steps",
        "6",
        "--runs",
        str(tmp_path / "runs"),
    )
    status = main([*few, "--schedules", SYNC, DECISIVE, "--json", str(told)])
    assert status in (0, 1)  # 1: so short waits make no schedule faster
    figures = {row["name"]: row for row in json.loads(told.read_text())}
    assert figures[f"{DECISIVE}: largest staleness"]["met"]
    assert figures[f"{DECISIVE}: share of the groups that is trained, filtered or failed"][
        "met"
    ]
    assert figures[f"{DECISIVE}: sync's step over its own"]["target"] == ">= 1.8"
    assert 0 < figures[f"{SYNC}: share of the rollouts' core that is busy"]["value"] <= 1
