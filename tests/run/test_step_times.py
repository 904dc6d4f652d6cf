"""When a run's steps and phases were: ``phases.jsonl``, and what the viewer makes of it."""

from __future__ import annotations

import math

from agentrl.store import RunDirectory, read_jsonl
from agentrl.viewer.runs.open_run import OpenRun
from agentrl.viewer.views.step_view import step_view


def test_what_each_step_waited_for_sums_to_its_seconds(trained: RunDirectory) -> None:
    rows = [row for row in read_jsonl(trained.metrics_path) if "time/step_s" in row]
    assert [(row["stage"], row["step"]) for row in rows] == [
        (row["stage"], row["step"]) for row in read_jsonl(trained.phases_path)
    ]
    with OpenRun(trained) as run:
        for row in rows:
            found = step_view(run, row["step"], row["stage"])
            seconds = [one["seconds"] for one in found["waited"]]
            assert sum(seconds) == row["time/step_s"]
            assert min(seconds) >= 0
            # nothing of the loop lies outside of its step but what came before the stage
            by = {one["phase"]: 0.0 for one in found["waited"]}
            for one in found["waited"]:
                by[one["phase"]] += one["seconds"]
            for name in ("wait_rollout", "logprobs", "update", "publish"):
                assert math.isclose(by.get(name, 0.0), row[f"time/{name}_s"], abs_tol=1e-4)


def test_the_wait_for_rollouts_is_that_of_their_episodes(trained: RunDirectory) -> None:
    with OpenRun(trained) as run:
        found = step_view(run, 1, "rl")

    parts = {one["part"]: one for one in found["waited"] if one["phase"] == "wait_rollout"}
    assert parts["generate"]["seconds"] > 0
    assert parts["generate"]["episode"] in {
        own["id"] for group in found["groups"] for own in group["episodes"]
    }


def test_what_the_rank_did_is_told_with_its_step(trained: RunDirectory) -> None:
    for row in read_jsonl(trained.phases_path):
        (_, began, ended), *_ = row["phases"]
        ranks = [phase for phase in row["phases"] if len(phase) == 4]
        assert {process for *_, process in ranks} == {"rank-0"}
        names = {name for name, *_ in ranks}
        assert "actor.update" in names
        # each told its own clock of the day
        early, late = began - 60, ended + 60
        assert all(early <= start <= end <= late for _, start, end, _ in ranks)
