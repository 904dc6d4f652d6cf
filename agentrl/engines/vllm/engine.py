"""VLLMEngine: an engine of vLLM servers (docs/vllm.md)."""

from __future__ import annotations

from agentrl.engines.base import EnginePlace, WeightSender
from agentrl.engines.servers.engine import ServersEngine, own_folder
from agentrl.engines.vllm.launch import VLLMServers
from agentrl.engines.vllm.vllm_spec import VLLMEngineSpec


class VLLMEngine(ServersEngine):
    """``RolloutEngine`` and ``EngineControl`` over vLLM servers; see ``ServersEngine``.

    Args:
        place: what is served.
        spec: which servers, and how.
        sender: see ``ServersEngine``.

    Raises:
        ConfigError: what the servers would refuse or die of; see ``VLLMServers``.
        MachineError: no interpreter, or a server that does not come up.
    """

    def __init__(
        self, place: EnginePlace, spec: VLLMEngineSpec, sender: WeightSender | None = None
    ) -> None:
        super().__init__(VLLMServers(own_folder(place), spec), sender)
