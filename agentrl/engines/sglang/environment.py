"""SGLang's environment: what it is made of, with a GPU and without.

The stand-ins belong to the recipe for the CPU, which users build too (``agentrl install sglang``):
SGLang 0.5.23 looks up GPU kernels when it is loaded, and the torchvision wheel operators of torch's
CUDA build. Neither is there without a GPU, and neither is ever called.
"""

from __future__ import annotations

from pathlib import Path

from agentrl.engines.servers.environment import Recipe, ServerEnvironment

_HERE = Path(__file__).parent

SGLANG = ServerEnvironment(
    engine="sglang",
    product="SGLang",
    version="0.5.23",
    least=(0, 5, 18),
    proof=("-m", "sglang.launch_server", "--help"),
    recipes=(
        # The wheel with all that it asks for: CUDA builds of torch and of SGLang's kernels.
        Recipe("gpu", (("sglang==0.5.23",),)),
        Recipe.on_cpu(
            _HERE / "recipe",
            {"sgl_kernel/__init__.py": _HERE / "stand_ins" / "kernels.py"},
        ),
    ),
)
