"""A folder of runs, and the recorded run that comes with agentrl."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from agentrl.cli.main import run as run_command_line
from agentrl.store import JsonlWriter, RunDirectory, TrajectoryWriter
from agentrl.viewer.demo import unpack_demo
from agentrl.viewer.runs import run_folder
from agentrl.viewer.runs.open_run import OpenRun, count_trajectories
from agentrl.viewer.runs.run_folder import RunFolder, run_key
from benchmarks.demo.planted import planted_faults
from tests.kit.waiting import until
from tests.viewer.server.viewers import Client, make_trajectory, viewing


def test_every_run_below_a_folder_is_listed_once(run: RunDirectory) -> None:
    root = run.root.parent
    shutil.copytree(run.root, root / "deep" / "er" / "second")
    # a run within a run is a part of it
    shutil.copytree(root / "deep" / "er" / "second", run.root / "models" / "within")
    (root / ".hidden").mkdir()
    with viewing(root) as address, Client(address) as client:
        assert address.link.endswith(address.token)  # the list of runs opens first
        rows = client.get("/api/runs").json()["runs"]
        assert {row["name"]: row["trajectories"] for row in rows} == {
            "first": 12,
            "deep/er/second": 12,
        }
        keys = {row["key"] for row in rows}
        assert len(keys) == 2
        assert run_key(run.root.resolve()) in keys
        for key in keys:
            assert client.get(f"/api/runs/{key}/trajectories").json()["total"] == 12


def test_runs_up_to_eight_folders_below_are_listed_and_deeper_ones_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "project"
    eight = root / "runs/exp/lr1b/a/b/c/d/seed0"
    RunDirectory.create(eight)
    assert [run.directory.root for run in RunFolder(root).runs()] == [eight.resolve()]
    assert caplog.records == []
    RunDirectory.create(eight.parent / "more" / "seed1")
    runs = RunFolder(root)
    runs.get(run_key(eight.resolve()))
    [told] = caplog.records
    assert (told.event, told.folder) == ("runs_left_out", str(root.resolve()))
    assert "more than 8 folders below it are not listed" in told.getMessage()
    runs.close()


def test_a_folder_above_too_many_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run_folder, "_MOST_FOLDERS", 4)
    for number in range(3):
        (tmp_path / "many" / f"{number}").mkdir(parents=True)
    RunDirectory.create(tmp_path / "many" / "run")
    (tmp_path / "many" / "zz").mkdir()
    assert [run.name for run in RunFolder(tmp_path / "many").runs()] == ["run"]
    assert "runs beyond the nearest 4 folders are not listed" in caplog.text


def test_a_look_that_takes_long_is_not_taken_at_every_list(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    looks = []

    def look(root: Path) -> tuple[list[Path], str]:
        nonlocal now
        looks.append(now)
        now += 5.0
        return [root], ""

    monkeypatch.setattr(run_folder, "monotonic", lambda: now)
    monkeypatch.setattr(run_folder, "_runs_below", look)
    runs = RunFolder(run.root)
    for _ in range(20):
        now += 4.0
        runs.runs()
    assert looks == [0.0, 57.0]


def test_a_run_that_cannot_be_read_is_listed_with_the_reason(run: RunDirectory) -> None:
    broken = run.root.parent / "broken"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    older = shutil.copytree(run.root, run.root.parent / "older")
    (older / "run.json").write_text('{"format": 1}')
    with viewing(run.root.parent) as address, Client(address) as client:
        rows = {row["name"]: row for row in client.get("/api/runs").json()["runs"]}
        assert "must be a JSON object" in rows["broken"]["error"]
        assert "has format=1 and this agentrl reads 4" in rows["older"]["error"]
        page = client.get(f"/api/runs/{rows['older']['key']}/trajectories")
        assert "has format=1 and this agentrl reads 4" in page.json()["error"]
        assert rows["first"]["trajectories"] == 12


def test_a_released_run_is_read_again(run: RunDirectory) -> None:
    runs = RunFolder(run.root)
    [one] = runs.runs()
    assert one.index().page().total == 12
    one.close()
    assert one.index().page().total == 12
    runs.close()


def test_what_is_kept_of_a_step_goes_once_its_lines_are_others(run: RunDirectory) -> None:
    opened = OpenRun(run)
    opened.metrics.refresh()
    opened.worst_tokens[1, "rl"] = None
    run.metrics_path.write_text('{"step": 1, "stage": "rl", "time": 1.0}\nno object\n')
    opened.metrics.refresh()
    assert opened.worst_tokens == {}
    assert len(opened.metrics.damage) == 1
    run.metrics_path.write_text('{"step": 1, "stage": "rl", "time": 2.0}\n')
    opened.metrics.refresh()
    assert opened.metrics.damage == []


def test_rows_are_counted_without_an_index(run: RunDirectory) -> None:
    assert count_trajectories(run) == 12
    live = JsonlWriter(run.live_folder / "step=000009" / "other-0001.jsonl")
    live.append({"id": "1-0-0"})
    live.close()
    next(run.sealed_folder.rglob("*.parquet")).rename(run.root / "away")
    assert count_trajectories(run) == 9
    next(run.sealed_folder.rglob("*.parquet")).write_bytes(b"torn")
    assert count_trajectories(run) == 5


def test_two_viewers_of_one_run_answer_alike(
    run: RunDirectory, tokenizer: Tokenizer
) -> None:
    with (
        viewing(run.root) as first,
        viewing(run.root) as second,
        Client(first) as one,
        Client(second) as other,
    ):
        assert one.of_run("/trajectories").json()["total"] == 12
        with TrajectoryWriter(run, "other") as writer:
            writer.write(make_trajectory(tokenizer, 70), 7)
        until(
            lambda: all(
                c.of_run("/trajectories").json()["total"] == 13 for c in (one, other)
            )
        )
        # each has its own token and its own cookie
        assert (
            other.get("/", headers={"Authorization": f"Bearer {first.token}"}).status_code
            == 401
        )
        key = run_key(run.root.resolve())
        note = {"trajectory": "70-0-0", "labels": ["seen"]}
        made = one.post(f"/api/runs/{key}/notes", json=note).json()
        assert other.of_run("/trajectory", id="70-0-0").json()["notes"] == [made]
        until(lambda: other.of_run("/trajectories", query="note:seen").json()["total"] == 1)


def test_the_demo_says_first_what_was_planted(capsys: pytest.CaptureFixture[str]) -> None:
    planted = {fault.name: fault.link for fault in planted_faults()}
    with viewing(unpack_demo()) as address, Client(address) as client:
        first = client.of_run("/overview").json()["findings"][0]
        assert first["link"]["id"] == planted["mismatched token"]["id"]
        assert first["link"]["tokens"] == planted["mismatched token"]["tokens"]
        costly = planted["costly token"]
        blame = client.of_run("/blame", step=costly["step"], signal="loss").json()
        assert blame["rows"][0]["id"] == costly["id"]
        assert blame["total"] == pytest.approx(blame["logged"], abs=1e-6)
    assert run_command_line(["view", ".", "--demo"]) == 2
    assert "--demo" in capsys.readouterr().err
