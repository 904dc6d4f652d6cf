"""The real packages, without network: what each was told is read back by its own means."""

from __future__ import annotations

import math
from pathlib import Path

import httpx
import pytest

from agentrl.errors import MachineError
from agentrl.metrics.metrics_spec import (
    MlflowSpec,
    OpenTelemetrySpec,
    PrometheusSpec,
    TrackioSpec,
    WandbSpec,
)
from agentrl.metrics.outlets.tracked_run import TrackedRun
from agentrl.metrics.timing import PhaseTimes
from tests.kit.trackers import collector, steps_of, wandb_records, wandb_rows

pytestmark = pytest.mark.trackers

SETTINGS = {"optim.lr": 1e-3, "stages.rl.data.args": {"n": 3}, "model.path": None}
ID = "0123456789abcdef"


@pytest.fixture(autouse=True)
def libraries() -> None:
    pytest.importorskip("trackio", reason="needs the libraries of make trackers")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def run(tmp_path: Path, said: list[str]) -> TrackedRun:
    root = tmp_path / "code"
    root.mkdir()
    return TrackedRun(root, ID, SETTINGS, said.append, {})


def test_wandb_has_each_stage_on_its_own_steps(run: TrackedRun) -> None:
    from agentrl.metrics.outlets.wandb_sink import WandbSink

    sink = WandbSink(WandbSpec(project="agents", mode="offline"), run)
    sink.log(1, {"policy/nll": 2.5}, "warmup")
    sink.log(1, {"reward/mean": 0.5}, "rl")
    sink.log(2, {"reward/mean": math.nan}, "rl")
    sink.close(failed=True)

    (records,) = wandb_records(run.root)
    assert wandb_rows(records) == [
        {"step": "1", "warmup/policy/nll": "2.5"},
        {"step": "1", "rl/reward/mean": "0.5"},
        {"step": "2", "rl/reward/mean": "NaN"},
    ]
    (axis,) = (one.metric for one in records if one.WhichOneof("record_type") == "metric")
    assert (axis.glob_name, axis.step_metric) == ("*", "step")
    (about,) = (one.run for one in records if one.WhichOneof("record_type") == "run")
    assert (about.run_id, about.project, about.display_name) == (ID, "agents", "code")
    config = {item.key: item.value_json for item in about.config.update}
    assert config["optim.lr"] == "0.001"
    (exit_record,) = (
        one.exit for one in records if one.WhichOneof("record_type") == "exit"
    )
    assert exit_record.exit_code == 1


def test_a_resumed_run_has_the_id_it_had_in_wandb(run: TrackedRun) -> None:
    from agentrl.metrics.outlets.wandb_sink import WandbSink

    for step in (1, 2):
        sink = WandbSink(WandbSpec(project="agents", mode="offline"), run)
        sink.log(step, {"reward/mean": 0.5}, "rl")
        sink.close()
    attempts = wandb_records(run.root)
    ids = {
        r.run.run_id
        for own in attempts
        for r in own
        if r.WhichOneof("record_type") == "run"
    }
    assert ids == {ID}
    assert [row["step"] for own in attempts for row in wandb_rows(own)] == ["1", "2"]


def test_trackio_goes_on_with_its_run(
    run: TrackedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import trackio
    from trackio import sqlite_storage, utils

    from agentrl.metrics.outlets.trackio_sink import TrackioSink

    # which read it from the environment as they are loaded
    for module in (sqlite_storage, utils):
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    for step in (1, 2):
        sink = TrackioSink(TrackioSpec(project="agents"), run)
        sink.log(step, {"reward/mean": step / 2}, "rl")
        sink.close()

    from trackio.sqlite_storage import SQLiteStorage

    (found,) = trackio.Api().runs("agents")
    assert found.name == f"code-{ID}"
    rows = SQLiteStorage.get_logs("agents", found.name)
    assert [(row["step"], row["rl/reward/mean"]) for row in rows] == [(1, 0.5), (2, 1.0)]
    assert found.config is not None
    assert SETTINGS.items() <= found.config.items()


def test_mlflow_goes_on_with_its_run_and_keeps_what_it_was_told(run: TrackedRun) -> None:
    from mlflow import MlflowClient

    from agentrl.metrics.outlets.mlflow_sink import MlflowSink

    uri = f"sqlite:///{run.root}/mlflow.db"
    spec = MlflowSpec(experiment="agents", tracking_uri=uri)
    first = MlflowSink(spec, run)
    first.log(1, {"reward/mean": 0.5, "eval/a,b/greedy": 1.0}, "rl")
    first.log(2, {"reward/mean": math.nan}, "rl")
    first.close(failed=True)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("agents")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.status, found.info.run_name) == ("FAILED", "code")
    assert found.data.params == {
        "optim.lr": "0.001",
        "stages.rl.data.args": "{'n': 3}",
        "model.path": "None",
    }
    changed = TrackedRun(run.root, ID, {**SETTINGS, "optim.lr": 2e-3}, run.say, {})
    second = MlflowSink(spec, changed)
    second.log(3, {"reward/mean": 0.75}, "rl")
    second.close()
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    told = client.get_metric_history(found.info.run_id, "rl/reward/mean")
    assert [(one.step, str(one.value)) for one in told] == [
        (1, "0.5"),
        (2, "nan"),
        (3, "0.75"),
    ]
    assert (
        client.get_metric_history(found.info.run_id, "rl/eval/a_b/greedy")[0].value == 1.0
    )
    other = MlflowSink(spec, TrackedRun(run.root, "f" * 16, {}, run.say, {}))
    other.close()
    assert len(client.search_runs([experiment.experiment_id])) == 2


def scraped(address: str) -> dict[tuple[str, str], float]:
    """The gauges of an endpoint by name and stage."""
    from prometheus_client.parser import text_string_to_metric_families

    text = httpx.get(address).raise_for_status().text
    samples = [one for own in text_string_to_metric_families(text) for one in own.samples]
    assert {one.labels["run"] for one in samples} <= {"code"}
    return {(one.name, one.labels["stage"]): one.value for one in samples}


def test_prometheus_reads_the_newest_numbers(run: TrackedRun, said: list[str]) -> None:
    from agentrl.metrics.outlets.prometheus_sink import PrometheusSink

    sink = PrometheusSink(PrometheusSpec(port=0), run)
    ((name, address),) = (text.split(": ") for text in said)
    assert (name, address.startswith("http://127.0.0.1:")) == ("metrics.prometheus", True)
    assert scraped(address) == {}
    sink.log(9, {"policy/nll": 2.5}, "warmup")
    sink.log(1, {"reward/mean": 0.5, "eval/a-b/greedy": 1.0}, "rl")
    sink.log(2, {"reward/mean": math.inf, "a/b": 1.0, "a_b": 2.0}, "rl")
    assert scraped(address) == {
        ("agentrl_step", "warmup"): 9.0,
        ("agentrl_policy_nll", "warmup"): 2.5,
        ("agentrl_step", "rl"): 2.0,
        ("agentrl_reward_mean", "rl"): math.inf,
        ("agentrl_eval_a_b_greedy", "rl"): 1.0,
        ("agentrl_a_b", "rl"): 2.0,  # of two names that are one for Prometheus, one is told
    }
    sink.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(address)


def test_a_port_that_is_taken_is_an_error_of_the_sink(
    run: TrackedRun, said: list[str]
) -> None:
    from agentrl.metrics.outlets.prometheus_sink import PrometheusSink

    first = PrometheusSink(PrometheusSpec(port=0), run)
    taken = int(said[0].split(":")[-1].partition("/")[0])
    with pytest.raises(OSError, match="in use"):
        PrometheusSink(PrometheusSpec(port=taken), run)
    first.close()


def test_a_step_is_a_span_with_one_below_it_for_each_phase(run: TrackedRun) -> None:
    from agentrl.metrics.outlets.opentelemetry_spans import StepSpans

    step_times = PhaseTimes("step", 10.0, 20.0)
    phases = [PhaseTimes("rollout", 11.0, 14.5), PhaseTimes("update", 15.0, 19.0, "rank-1")]
    with collector() as own:
        outlet = StepSpans(OpenTelemetrySpec(endpoint=own.url), run)
        outlet.log(7, {}, "rl", [step_times, *phases])
        outlet.close()
    spans = own.spans

    assert {one["about"]["service.name"] for one in spans} == {"agentrl"}
    assert {(o["about"]["agentrl.run"], o["about"]["agentrl.run_id"]) for o in spans} == {
        ("code", ID)
    }
    by_name = {one["span"].name: one["span"] for one in spans}
    assert by_name.keys() == {"step", "rollout", "update"}
    step = by_name["step"]
    assert not step.parent_span_id
    assert {key.key for key in step.attributes} == {"agentrl.stage", "agentrl.step"}
    (process,) = (
        key for key in by_name["update"].attributes if key.key == "agentrl.process"
    )
    assert process.value.string_value == "rank-1"
    assert step.start_time_unix_nano == 10e9
    for name, began, took in (("rollout", 1.0, 3.5), ("update", 5.0, 4.0)):
        phase = by_name[name]
        assert (phase.parent_span_id, phase.trace_id) == (step.span_id, step.trace_id)
        assert phase.start_time_unix_nano - step.start_time_unix_nano == pytest.approx(
            began * 1e9, abs=1000
        )
        lasted = phase.end_time_unix_nano - phase.start_time_unix_nano
        assert lasted == pytest.approx(took * 1e9, abs=1000)
    assert step.end_time_unix_nano - step.start_time_unix_nano == pytest.approx(
        10e9, abs=1000
    )


def test_spans_that_a_collector_refuses_are_an_error(run: TrackedRun) -> None:
    from agentrl.metrics.outlets.opentelemetry_spans import StepSpans

    with collector(400) as own:
        outlet = StepSpans(OpenTelemetrySpec(endpoint=own.url), run)
        with pytest.raises(MachineError, match="took no spans"):
            outlet.log(1, {}, "rl", [PhaseTimes("step", 0.0, 1.0)])
        own.status = 200
        outlet.log(2, {}, "rl", [PhaseTimes("step", 1.0, 2.0)])
        outlet.close()
    # what was refused is not sent again
    assert [(one["span"].name, steps_of(one)) for one in own.spans] == [("step", 2)]
