from __future__ import annotations

import pytest

from agentrl.sandbox import BackendReport, SandboxSpec, probe_backends
from agentrl.sandbox.sandbox_spec import report_on


@pytest.fixture(scope="session")
def landlock() -> BackendReport:
    report = next(report for report in probe_backends() if report.backend == "landlock")
    if report.problem is not None:
        pytest.skip(f"the landlock backend is missing here: {report.problem}")
    return report


@pytest.fixture(scope="session")
def bubblewrap() -> BackendReport:
    report = report_on(SandboxSpec("bubblewrap", require="none"))
    if report.problem is not None:
        pytest.skip(f"the bubblewrap backend is missing here: {report.problem}")
    return report


@pytest.fixture
def spec(landlock: BackendReport) -> SandboxSpec:
    return SandboxSpec("landlock")
