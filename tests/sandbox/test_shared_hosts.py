"""Hosts of a process: shared by equal settings, few without a sandbox, each started by itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentrl.sandbox import Limits, SandboxSpec
from agentrl.sandbox.docker import backend as docker_backend
from agentrl.sandbox.forkserver import hosts
from agentrl.sandbox.forkserver.hosts import shared_server
from agentrl.sandbox.forkserver.launcher import LocalLauncher, ProcessHost
from agentrl.sandbox.forkserver.server import HostSettings
from agentrl.sandbox.forkserver.slot_sandbox import ForkedSandbox
from tests.kit.waiting import DEADLINE_S, is_alive, until


def of_image(name: str) -> HostSettings:
    """Settings that differ as those of two images do."""
    return HostSettings(confine=False, preload=(name,))


@pytest.fixture(autouse=True)
def own_hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No hosts from before, and none afterwards."""
    with monkeypatch.context() as patched:
        patched.setattr(hosts, "_servers", {})
        patched.setattr(hosts, "_retired", [])
        yield
        hosts.close_servers()


async def test_of_the_hosts_without_a_sandbox_those_longest_unused_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, first, second = (
        shared_server(of_image(name)) for name in ("json", "csv", "heapq")
    )
    monkeypatch.setattr(hosts, "_MOST_IDLE", 1)
    async with ForkedSandbox(lambda: held, Limits()) as sandbox:
        await sandbox.start()
        # now the second is the longest unused
        assert shared_server(of_image("csv")) is first
        third = shared_server(of_image("bisect"))
        assert list(hosts._servers.values()) == [held, first, third]
        until(lambda: not is_alive(second.facts["pid"]))
        assert (await sandbox.run("print(1)")).stdout == b"1\n"


async def test_a_host_that_is_retired_before_its_slot_opens_is_asked_for_again() -> None:
    retired, other = shared_server(of_image("json")), shared_server(of_image("csv"))
    retired.retire()
    given = iter([retired, other])
    async with ForkedSandbox(lambda: next(given), Limits()) as sandbox:
        assert (await sandbox.run("print(1)")).stdout == b"1\n"


@dataclass(frozen=True)
class Waits(LocalLauncher):
    """Starts its host once it is told."""

    begun: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)

    def start(self, *given: Any) -> ProcessHost:
        self.begun.set()
        assert self.go.wait(DEADLINE_S / 4)
        return super().start(*given)


def test_a_host_is_given_while_another_one_starts() -> None:
    warm = shared_server(of_image("json"))
    launcher = Waits()
    cold = HostSettings(confine=False, launcher=launcher)
    started: list[object] = []
    starting = threading.Thread(target=lambda: started.append(shared_server(cold)))
    starting.start()
    assert launcher.begun.wait(DEADLINE_S)
    try:
        assert shared_server(of_image("json")) is warm
        assert started == []
    finally:
        launcher.go.set()
        starting.join()
    assert started == [shared_server(cold)]


def test_images_share_the_bound_on_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[HostSettings, HostSettings]] = []
    monkeypatch.setattr(docker_backend, "shared_server", lambda *given: asked.append(given))
    for image in ("a", "b"):
        vars(docker_backend.docker(SandboxSpec("docker", image=image)))["_server"]()
    (one, bound), (other, others) = asked
    assert one != other
    assert bound == others

    executing = [
        shared_server(of_image(name), of_image("")).executing for name in ("json", "csv")
    ]
    assert executing[0] is executing[1]
