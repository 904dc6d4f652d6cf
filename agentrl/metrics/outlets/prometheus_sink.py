"""Prometheus sink: an endpoint with the newest numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from agentrl.metrics.metrics_spec import PrometheusSpec
from agentrl.metrics.outlets.tracked_run import TrackedRun
from agentrl.metrics.sinks import OutletSink
from agentrl.metrics.timing import PhaseTimes


class PrometheusSink(OutletSink):
    """Gauges such as ``agentrl_reward_mean``, with the labels ``run`` and ``stage``.

    Args:
        spec: where it listens.
        run: whose numbers.
    """

    def __init__(self, spec: PrometheusSpec, run: TrackedRun) -> None:
        self._name = run.name
        self._registry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}
        self._server, _ = start_http_server(spec.port, spec.host, self._registry)
        run.say(
            f"metrics.prometheus: http://{spec.host}:{self._server.server_port}/metrics"
        )

    def log(
        self,
        step: int,
        values: Mapping[str, float],
        prefix: str = "",
        times: Sequence[PhaseTimes] = (),
    ) -> None:
        for name, value in {"step": step, **values}.items():
            gauge = re.sub(r"\W", "_", f"agentrl_{name}", flags=re.ASCII)
            if gauge not in self._gauges:
                labels = ("run", "stage")
                self._gauges[gauge] = Gauge(gauge, name, labels, registry=self._registry)
            self._gauges[gauge].labels(self._name, prefix).set(value)

    def close(self, *, failed: bool = False) -> None:
        self._server.shutdown()
        self._server.server_close()
