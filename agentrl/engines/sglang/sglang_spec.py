"""SGLangEngine's specification: the section ``rollout.sglang``."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

from agentrl.engines.base import EngineTraits
from agentrl.engines.servers.environment import ServerEnvironment
from agentrl.engines.servers.section import OF_STARTED, ServersSpec, argument_name
from agentrl.engines.sglang.environment import SGLANG
from agentrl.types.section import Count


class SGLangEngineSpec(ServersSpec):
    """Servers of ``rollout.engine: sglang``, and how weights reach them."""

    section: ClassVar[str] = "sglang"
    engine: ClassVar[str] = "agentrl.engines.sglang.engine:SGLangEngine"
    server_environment: ClassVar[ServerEnvironment] = SGLANG
    own_arguments: ClassVar[tuple[str, ...]] = (
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
        "random-seed",
        "enable-return-routed-experts",
    )

    page_size: Annotated[Count | None, OF_STARTED] = None
    """Tokens of a page of a server's KV cache."""

    @property
    def _shares_gpu(self) -> bool:
        return super()._shares_gpu and "base-gpu-id" not in map(
            argument_name, self.server_args
        )

    def traits(self) -> EngineTraits:
        """See ``EngineSpec.traits``."""
        return replace(super().traits(), routed_experts=self.device != "cpu")
