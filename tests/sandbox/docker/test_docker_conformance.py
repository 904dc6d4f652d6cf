from __future__ import annotations

import pytest

from agentrl.sandbox import GUARANTEES, SandboxSpec
from agentrl.sandbox.conformance import CHECKS, Check, check_sandbox

pytestmark = pytest.mark.docker


def name(check: Check) -> str:
    return check.name


def test_every_guarantee_holds_in_a_container(spec: SandboxSpec) -> None:
    assert spec.check().held == set(GUARANTEES)


@pytest.mark.parametrize("check", CHECKS, ids=name)
async def test_docker_passes_every_check(check: Check, spec: SandboxSpec) -> None:
    (result,) = await check_sandbox(spec.build, guarantees=GUARANTEES, only=[check.name])
    assert result.passed, result.detail
