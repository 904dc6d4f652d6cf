"""SGLangEngine's specification: the section ``rollout.sglang``."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import Field, field_validator

from agentrl.engines.base import EnginePlace, EngineTraits, HostedEngine, WeightSender
from agentrl.engines.servers.environment import ServerEnvironment
from agentrl.engines.servers.section import ServersSpec
from agentrl.engines.sglang.environment import SGLANG
from agentrl.types.section import Arguments, Count, Fraction
from agentrl.types.user_code.load import load_object

_OWN_ARGUMENTS = (
    "model-path",
    "host",
    "port",
    "dtype",
    "context-length",
    "weight-version",
    "skip-tokenizer-init",
    "tp-size",
    "max-running-requests",
    "mem-fraction-static",
    "page-size",
    "max-total-tokens",
    "preferred-sampling-params",
    "enable-return-routed-experts",
)


class SGLangEngineSpec(ServersSpec):
    """Servers of ``rollout.engine: sglang``, and how weights reach them."""

    section: ClassVar[str] = "sglang"
    server_environment: ClassVar[ServerEnvironment] = SGLANG

    tp_size: Count = 1
    """Tensor-parallel ranks of a server."""
    max_running_requests: Count | None = None
    """Requests that a server decodes at once; by default SGLang's own choice."""
    kv_memory_fraction: Fraction | None = None
    """Share of a device's memory for weights and KV cache; by default SGLang's own choice, or what
    a count on paper leaves on GPUs that a server has in turn with ranks (docs/sglang.md)."""
    page_size: Count | None = None
    """Tokens of a page of a server's KV cache."""
    server_args: Arguments = Field(default_factory=dict)
    """Further arguments of ``sglang.launch_server`` by name, without dashes in front; true is a
    flag."""

    @field_validator("server_args")
    @classmethod
    def _not_own(cls, value: Arguments) -> Arguments:
        for name in value:
            if name.lstrip("-").replace("_", "-") in _OWN_ARGUMENTS:
                raise cls.broken(
                    "server_args",
                    f" must not have {name!r}, which agentrl sets itself; use the setting of that "
                    "meaning (docs/sglang.md)",
                )
        return value

    @property
    def _shares_gpu(self) -> bool:
        names = {name.lstrip("-").replace("_", "-") for name in self.server_args}
        return super()._shares_gpu and "base-gpu-id" not in names

    @property
    def _gpus_a_server(self) -> int:
        return self.tp_size

    def traits(self) -> EngineTraits:
        """See ``EngineSpec.traits``."""
        return replace(super().traits(), routed_experts=self.device != "cpu")

    def build(self, place: EnginePlace, sender: WeightSender | None = None) -> HostedEngine:
        """Starts the servers, or looks at those given, and waits until all serve.

        Raises:
            MachineError: no interpreter or environment, a server that does not come up, or a
                version below the least one.
            EngineError: a given server has another model.
        """
        build = load_object("agentrl.engines.sglang.engine:SGLangEngine")
        engine: HostedEngine = build(place, self, sender)
        return engine
