"""SGLangEngine: an engine of SGLang servers (docs/sglang.md)."""

from __future__ import annotations

from agentrl.engines.base import EnginePlace, WeightSender
from agentrl.engines.servers.engine import ServersEngine, own_folder
from agentrl.engines.sglang.launch import SGLangServers
from agentrl.engines.sglang.sglang_spec import SGLangEngineSpec


class SGLangEngine(ServersEngine):
    """``RolloutEngine`` and ``EngineControl`` over SGLang servers; see ``ServersEngine``.

    Args:
        place: what is served.
        spec: which servers, and how.
        sender: see ``ServersEngine``.

    Raises:
        ConfigError: ``context_tokens`` above what the model was made for, or ``tp_size`` ranks that
            cannot share it.
        MachineError: no interpreter, or a server that does not come up.
    """

    def __init__(
        self, place: EnginePlace, spec: SGLangEngineSpec, sender: WeightSender | None = None
    ) -> None:
        super().__init__(SGLangServers(own_folder(place), spec), sender)
