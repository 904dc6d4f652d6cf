"""A backend of a user's own that has images: each sandbox tells the one that it was asked for."""

from __future__ import annotations

from agentrl.sandbox import SandboxSpec
from agentrl.sandbox.forkserver.hosts import shared_server
from agentrl.sandbox.forkserver.server import HostSettings
from agentrl.sandbox.forkserver.slot_sandbox import ForkedSandbox


class InImage(ForkedSandbox):
    image = ""

    @property
    def notes(self) -> str:
        return self.image


def build(spec: SandboxSpec) -> InImage:
    settings = HostSettings(confine=False)
    sandbox = InImage(lambda: shared_server(settings), spec.limits)
    sandbox.image = spec.image or ""
    return sandbox
