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
from agentrl.types.clock import EpochClock


class StepSpans(OutletSink):
    """A trace for each step: its span, and below it one for each phase.

    Args:
        spec: of the collector.
        run: whose steps.
    """

    def __init__(self, spec: OpenTelemetrySpec, run: TrackedRun) -> None:
        about = {"service.name": "agentrl", "agentrl.run": run.name, "agentrl.run_id": run.id}
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
        at = EpochClock().at
        about = {"agentrl.stage": prefix, "agentrl.step": step}
        within, spans = None, []
        for name, began, ended in times:
            began_ns, ended_ns = (int(at(seconds) * 1e9) for seconds in (began, ended))
            span = self._start(name, within, start_time=began_ns, attributes=about)
            span.end(ended_ns)
            spans.append(span)
            within = within or set_span_in_context(span)
        if spans and self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise MachineError(
                f"the collector at {self._endpoint} took no spans; see that "
                "metrics.opentelemetry.endpoint is its address and that it runs"
            )
