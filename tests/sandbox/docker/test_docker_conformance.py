from __future__ import annotations

import docker
import pytest

from agentrl.sandbox import GUARANTEES, SandboxSpec
from agentrl.sandbox.conformance import CHECKS, Check, check_sandbox

pytestmark = pytest.mark.docker


def name(check: Check) -> str:
    return check.name


def test_every_guarantee_that_the_engine_can_give_holds(
    spec: SandboxSpec, client: docker.DockerClient
) -> None:
    podman = "Podman" in str(client.version())  # which cannot bound the number of files
    assert spec.check().held == set(GUARANTEES) - ({"disk"} if podman else set())


@pytest.mark.wide
@pytest.mark.parametrize("check", CHECKS, ids=name)
async def test_docker_passes_every_check(check: Check, spec: SandboxSpec) -> None:
    held = spec.check().held
    if check.guarantee is not None and check.guarantee not in held:
        pytest.skip(f"this engine does not give {check.guarantee!r}")
    (result,) = await check_sandbox(spec.build, guarantees=held, only=[check.name])
    assert result.passed, result.detail
