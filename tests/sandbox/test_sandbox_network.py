"""Code that may reach chosen hosts: through the proxy, and by no other way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentrl.errors import ConfigError, MachineError
from agentrl.sandbox import GUARANTEES, SandboxSpec
from agentrl.sandbox.conformance import CHECKS, check_sandbox
from tests.kit.http import Answering, serving

FETCH = """
import sys, urllib.request
for url in sys.argv[1:] or sys.stdin.read().split():
    try:
        with urllib.request.urlopen(url) as answer: print(answer.status, answer.read().decode())
    except OSError as error: print(getattr(error, 'code', error))
"""


class Hello(Answering):
    def do_GET(self) -> None:
        self.answer(b"hello")


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[int, int]]:
    """Two servers of this machine, of which one is listed."""
    with serving(Hello) as listed, serving(Hello) as other:
        yield int(listed.rpartition(":")[2]), int(other.rpartition(":")[2])


@pytest.fixture(scope="module")
def open_spec(servers: tuple[int, int]) -> SandboxSpec:
    spec = SandboxSpec("bubblewrap", network=(f"127.0.0.1:{servers[0]}", "pypi.org"))
    try:
        spec.check()
    except MachineError as error:
        pytest.skip(f"the bubblewrap backend is missing here: {error}")
    return spec


async def test_listed_hosts_answer_and_others_do_not(
    open_spec: SandboxSpec, servers: tuple[int, int]
) -> None:
    listed, other = servers
    urls = f"http://127.0.0.1:{listed}/ http://127.0.0.1:{other}/ http://169.254.169.254/latest/meta-data http://a.example/"  # noqa: E501
    async with open_spec.build() as sandbox:
        result = await sandbox.run(FETCH, stdin=urls.encode(), timeout_s=60)
    assert result.stdout == b"200 hello\n403\n403\n403\n", result


async def test_programs_find_it_too(
    open_spec: SandboxSpec, servers: tuple[int, int]
) -> None:
    argv = ["python3", "-c", FETCH, f"http://127.0.0.1:{servers[0]}/"]
    async with open_spec.build() as sandbox:
        assert (await sandbox.run(argv=argv, timeout_s=60)).stdout == b"200 hello\n"


async def test_every_guarantee_holds_with_it(open_spec: SandboxSpec) -> None:
    assert open_spec.check().held == set(GUARANTEES)


@pytest.mark.parametrize(
    "name", [check.name for check in CHECKS if check.guarantee == "network"]
)
async def test_every_attack_on_the_network_fails_with_it(
    open_spec: SandboxSpec, name: str
) -> None:
    (result,) = await check_sandbox(open_spec.build, guarantees={"network"}, only=[name])
    assert result.passed, result.detail


async def test_two_sandboxes_do_not_meet_on_the_loopback_that_they_share(
    open_spec: SandboxSpec,
) -> None:
    serve = "import socket\ns = socket.socket()\ntry: s.listen(); print('BREACH')\nexcept OSError as e: print(e.errno)"  # noqa: E501
    async with open_spec.build() as sandbox:
        assert (await sandbox.run(serve)).stdout == b"1\n"  # EPERM


async def test_an_interpreter_that_persists_keeps_its_way(
    open_spec: SandboxSpec, servers: tuple[int, int]
) -> None:
    url = f"http://127.0.0.1:{servers[0]}/"
    async with open_spec.build() as sandbox:
        for _ in range(2):
            result = await sandbox.run(
                FETCH, stdin=url.encode(), timeout_s=60, persist="interpreter"
            )
            assert result.stdout == b"200 hello\n", result


@pytest.mark.parametrize("backend", ["landlock", "docker", "unsafe"])
def test_a_backend_that_cannot_keep_to_a_list_is_refused_by_name(backend: str) -> None:
    words = rf"needs a backend that can keep code to a list of hosts, SandboxSpec\.backend='{backend}' cannot; use one of bubbl"  # noqa: E501
    with pytest.raises(ConfigError, match=words):
        SandboxSpec(backend, network=("pypi.org",))


def test_auto_looks_only_where_it_can_be_had() -> None:
    assert SandboxSpec(network=("pypi.org",)).candidates() == ("bubblewrap",)


def test_the_configuration_says_none_or_hosts() -> None:
    assert SandboxSpec.model_validate({"network": "none"}).network.allow == ()
    assert SandboxSpec.model_validate(
        {"network": {"allow": ["pypi.org"]}}
    ).network.allow == ("pypi.org",)
