"""Metrics spec: where a run's numbers go beside ``metrics.jsonl``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from agentrl.types.section import ActsWith, Section

_OF_A_PROJECT = ActsWith("project", but=(None,))


class WandbSpec(Section):
    """Weights & Biases, where ``project`` is set; needs ``pip install 'wandb>=0.31'``, and a key by
    ``wandb login`` or in ``WANDB_API_KEY``.
    """

    project: str | None = None
    """The project. A resumed run goes on with its run there."""
    entity: Annotated[str | None, _OF_A_PROJECT] = None
    """Team or user; by default the key's own."""
    mode: Annotated[Literal["online", "offline"], _OF_A_PROJECT] = "online"
    """``offline`` writes to ``wandb`` in the run directory alone, for ``wandb sync`` later."""


class TrackioSpec(Section):
    """Trackio, where ``project`` is set; needs ``pip install 'trackio>=0.43'``, which wants Pillow
    below 13.
    """

    project: str | None = None
    """The project. A resumed run goes on with its run there."""
    space: Annotated[str | None, _OF_A_PROJECT] = None
    """A Space of Hugging Face, as ``user/name``; by default trackio's folder on this machine."""


class MlflowSpec(Section):
    """MLflow, where ``experiment`` is set; needs ``pip install 'mlflow-skinny>=3.0'``."""

    experiment: str | None = None
    """The experiment, made where there is none. A resumed run goes on with its run there."""
    tracking_uri: Annotated[str | None, ActsWith("experiment", but=(None,))] = None
    """As ``http://host:5000``; by default that of ``MLFLOW_TRACKING_URI``."""


class PrometheusSpec(Section):
    """An endpoint ``/metrics`` with the newest numbers for Prometheus, where ``port`` is set; needs
    ``pip install 'prometheus-client>=0.20'``.
    """

    port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """0 takes a free one. ``events.jsonl`` and the terminal tell the address."""
    host: Annotated[str, ActsWith("port", but=(None,))] = "127.0.0.1"
    """The address to listen on: whoever reaches it reads the numbers."""


class OpenTelemetrySpec(Section):
    """A span for each step, with one below for each phase, to a collector, where ``endpoint`` is
    set; needs ``pip install 'opentelemetry-api>=1.30' 'opentelemetry-sdk>=1.30'
    'opentelemetry-exporter-otlp-proto-http>=1.30'``.
    """

    endpoint: Annotated[str, Field(pattern="^https?://")] | None = None
    """Where OTLP over HTTP takes traces, as ``http://127.0.0.1:4318/v1/traces``."""


class MetricsSpec(Section):
    """Where numbers go beside ``metrics.jsonl`` (docs/metrics.md). What is slow or fails there
    neither slows nor ends a run.
    """

    tensorboard: bool = False
    """Also TensorBoard event files in the run directory; needs
    ``pip install 'tensorboard>=2.18'``.
    """
    verl_names: bool = False
    """Also under verl's names, where the two mean the same."""
    wandb: WandbSpec = WandbSpec()
    trackio: TrackioSpec = TrackioSpec()
    mlflow: MlflowSpec = MlflowSpec()
    prometheus: PrometheusSpec = PrometheusSpec()
    opentelemetry: OpenTelemetrySpec = OpenTelemetrySpec()

    @property
    def asked(self) -> list[str]:
        """Those that are on, each of which needs the extra of its name."""
        switches = {
            "tensorboard": self.tensorboard or None,
            "wandb": self.wandb.project,
            "trackio": self.trackio.project,
            "mlflow": self.mlflow.experiment,
            "prometheus": self.prometheus.port,
            "opentelemetry": self.opentelemetry.endpoint,
        }
        return [name for name, value in switches.items() if value is not None]
