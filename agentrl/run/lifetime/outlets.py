"""Outlets: what other programs are told of a run, as its configuration asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pkgutil import resolve_name

from agentrl.config import RunConfig, StageConfig, flat_settings
from agentrl.guards.secret_mask import SecretMask
from agentrl.metrics import StepDisplay
from agentrl.metrics.metrics_spec import MetricsSpec
from agentrl.metrics.outlets.tracked_run import TrackedRun
from agentrl.metrics.sinks import OutletSink
from agentrl.run.lifetime.webhooks import webhook_urls
from agentrl.store import EventLog, RunDirectory, read_jsonl
from agentrl.store.json_text import from_json, to_json
from agentrl.types.user_code.load import needed

_PLACE = "agentrl.metrics.outlets"
_CLASSES: Mapping[str, str] = {
    "tensorboard": "tensorboard_sink:TensorBoardSink",
    "wandb": "wandb_sink:WandbSink",
    "trackio": "trackio_sink:TrackioSink",
    "mlflow": "mlflow_sink:MlflowSink",
    "prometheus": "prometheus_sink:PrometheusSink",
    "opentelemetry": "opentelemetry_spans:StepSpans",
}


def check_outlets(config: RunConfig, stages: Sequence[StageConfig]) -> None:
    """Finds what an outlet lacks, before anything is made.

    Raises:
        ConfigError: a package is not installed, or an environment variable holds no URL.
    """
    for name in config.metrics.asked:
        _outlet_class(name)
    webhook_urls(stages)


def tracked_run(
    config: RunConfig,
    stages: Sequence[StageConfig],
    directory: RunDirectory,
    events: EventLog,
    display: StepDisplay,
) -> TrackedRun:
    """The run as outlets know it; where it is resumed, before it goes back to its checkpoint."""

    def say(text: str) -> None:
        display.message(text)
        events.log("outlet_opened", text, boundary="metrics")

    settings = {
        f"stages.{stage}.{key}" if stage else key: value
        for stage, own in flat_settings(config, stages).items()
        for key, value in own.items()
        # a URL that posts for whoever knows it
        if key != "health.webhook"
    }
    return TrackedRun(
        directory.root,
        directory.read_record()["id"],
        from_json(SecretMask()(to_json(settings))),
        say,
        _known(directory),
    )


def _known(directory: RunDirectory) -> dict[str, tuple[int, set[str]]]:
    """See ``TrackedRun.known``: what earlier resumes wrote down, and the rows since then."""
    known: dict[str, tuple[int, set[str]]] = {}
    for resume in read_jsonl(directory.resumes_path):
        for stage, (step, names) in resume.get("told", {}).items():
            known[stage] = step, set(names)
    for row in read_jsonl(directory.metrics_path):
        stage, step = row["stage"], row["step"]
        last, names = known.get(stage, (-1, set()))
        # a step may have several rows
        if step >= last:
            known[stage] = step, {*row, *(names if step == last else ())}
    return known


def sink_openers(spec: MetricsSpec, run: TrackedRun) -> dict[str, Callable[[], OutletSink]]:
    """What opens each sink that is asked for, by the setting's name."""
    return {
        f"metrics.{name}": partial(_outlet_class(name), getattr(spec, name), run)
        for name in spec.asked
    }


def _outlet_class(name: str) -> Callable[..., OutletSink]:
    """The class of an outlet, which is made of its setting and the run."""
    with needed(f"metrics.{name}", name):
        found: Callable[..., OutletSink] = resolve_name(f"{_PLACE}.{_CLASSES[name]}")
    return found
