"""OpenTelemetry spans: tell a collector when each step and its phases began and ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import set_span_in_context

from agentrl.errors import MachineError
from agentrl.metrics.metrics_spec import OpenTelemetrySpec
from agentrl.metrics.outlets.courier import CLOSE_S
from agentrl.metrics.outlets.tracked_run import TrackedRun
from agentrl.metrics.sinks import OutletSink
from agentrl.metrics.timing import PhaseTimes


class StepSpans(OutletSink):
    """A trace for each step: its span, and below it one for each phase and each call of a rank.

    Args:
        spec: of the collector.
        run: whose steps.
    """

    def __init__(self, spec: OpenTelemetrySpec, run: TrackedRun) -> None:
        about = {
            "service.name": "agentrl",
            "agentrl.run": run.name,
            "agentrl.run_id": run.id,
        }
        provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
        self._start = provider.get_tracer("agentrl").start_span
        self._endpoint = spec.endpoint
        self._exporter = OTLPSpanExporter(spec.endpoint, timeout=CLOSE_S)

    def log(
        self,
        step: int,
        values: Mapping[str, float],
        prefix: str = "",
        times: Sequence[PhaseTimes] = (),
    ) -> None:
        """Sends a step's times.

        Raises:
            MachineError: the collector does not take them.
        """
        about = {"agentrl.stage": prefix, "agentrl.step": step}
        within, spans = None, []
        for name, began, ended, process in times:
            own = {**about, "agentrl.process": process} if process else about
            span = self._start(name, within, start_time=int(began * 1e9), attributes=own)
            span.end(int(ended * 1e9))
            spans.append(span)
            within = within or set_span_in_context(span)
        if spans and self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise MachineError(
                f"the collector at {self._endpoint} took no spans; see that "
                "metrics.opentelemetry.endpoint is its address and that it runs"
            )
