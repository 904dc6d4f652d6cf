"""A whole run with every outlet on, killed of its last checkpoint and resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.metrics import Sinks
from agentrl.store import RunDirectory, read_jsonl
from tests.kit.trackers import collector, steps_of, wandb_records, wandb_rows
from tests.kit.waiting import DEADLINE_S
from tests.run.tiny_run import train

pytestmark = pytest.mark.trackers


def test_each_outlet_is_told_each_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs the libraries of make trackers")
    from trackio import sqlite_storage, utils

    # which read it from the environment as they are loaded
    for module in (
        sqlite_storage,
        utils,
    ):
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setitem(Sinks.__init__.__kwdefaults__, "close_s", DEADLINE_S)
    monkeypatch.setenv("SERVICE_TOKEN", "hunter2-hunter2")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    with collector() as own:
        settings = (
            "stages.warmup.steps=1",
            "stages.rl.eval.sets={}",
            "checkpoint.every=2",
            "metrics.wandb={project: agents, mode: offline}",
            "metrics.trackio.project=agents",
            f"metrics.mlflow={{experiment: agents, tracking_uri: '{uri}'}}",
            "metrics.prometheus.port=0",
            f"metrics.opentelemetry.endpoint={own.url}",
            "stages.rl.health.webhook=http://127.0.0.1:9/secret",
            "stages.rl.rollout.stop=[hunter2-hunter2]",
        )
        run = train(tmp_path, *settings, "stages.rl.steps=3")
        # the third step is played again, as after a death behind the checkpoint of the second
        (last,) = RunDirectory(run).checkpoints_folder.glob("rl/step=000003")
        last.rename(tmp_path / "elsewhere")
        train(tmp_path, *settings, "stages.rl.steps=4", resume=True)
    events = list(read_jsonl(run / "events.jsonl"))
    assert not [one for one in events if one["event"].startswith("sink_")]
    opened = [
        one["message"].partition("http")[0] for one in events if "outlet" in one["event"]
    ]
    assert opened == ["metrics.prometheus: ", "metrics.prometheus: "]

    told = [("warmup", 1), ("rl", 1), ("rl", 2), ("rl", 3), ("rl", 4)]
    rows = [row for attempt in wandb_records(run) for row in wandb_rows(attempt)]
    assert [
        (stage, int(row["step"]))
        for row in rows
        for stage in ("warmup", "rl")
        if f"{stage}/time/step_s" in row
    ] == told
    client = mlflow.MlflowClient(uri)
    (found,) = client.search_runs([client.get_experiment_by_name("agents").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["stages.rl.train.steps"] == "3"
    assert found.data.params["stages.rl.rollout.stop"] == "['<masked:SERVICE_TOKEN>']"
    assert not [name for name in found.data.params if "webhook" in name]
    history = client.get_metric_history(found.info.run_id, "rl/reward/mean")
    assert [one.step for one in history] == [1, 2, 3, 4]
    name = f"run-{RunDirectory(run).read_record()['id']}"
    logs = sqlite_storage.SQLiteStorage.get_logs("agents", name)
    assert [one["step"] for one in logs] == [step for _, step in told]
    # the work that a resume does again took its time again
    steps = [steps_of(one) for one in own.spans if one["span"].name == "step"]
    assert steps == [1, 1, 2, 3, 3, 4]
    names = {one["span"].name for one in own.spans}
    assert {"setup", "wait_rollout", "logprobs", "update", "publish", "checkpoint"} <= names
