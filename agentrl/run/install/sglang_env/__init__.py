"""The environment that SGLang servers run in: its recipes, its default place, and how it is
built.
"""

from __future__ import annotations

from agentrl.run.install.sglang_env.build import build_environment, installed_environments
from agentrl.run.install.sglang_env.place import default_folder, default_python
from agentrl.run.install.sglang_env.recipe import CPU, GPU, SGLANG_VERSION, Recipe

__all__ = [
    "CPU",
    "GPU",
    "SGLANG_VERSION",
    "Recipe",
    "build_environment",
    "default_folder",
    "default_python",
    "installed_environments",
]
