"""VLLMEngine's specification: the section ``rollout.vllm``."""

from __future__ import annotations

from typing import ClassVar

from agentrl.engines.servers.environment import ServerEnvironment
from agentrl.engines.servers.section import ServersSpec
from agentrl.engines.vllm.environment import VLLM


class VLLMEngineSpec(ServersSpec):
    """Servers of ``rollout.engine: vllm``, and how weights reach them."""

    section: ClassVar[str] = "vllm"
    engine: ClassVar[str] = "agentrl.engines.vllm.engine:VLLMEngine"
    server_environment: ClassVar[ServerEnvironment] = VLLM
    own_arguments: ClassVar[tuple[str, ...]] = (
        "model",
        "host",
        "port",
        "dtype",
        "max-model-len",
        "served-model-name",
        "skip-tokenizer-init",
        "tensor-parallel-size",
        "max-num-seqs",
        "gpu-memory-utilization",
        "kv-cache-memory-bytes",
        "logprobs-mode",
        "logits-processors",
        "max-logprobs",
        "worker-extension-cls",
        "enable-scale-out",
        "generation-config",
        "override-generation-config",
        "seed",
        "speculative-config",
    )
