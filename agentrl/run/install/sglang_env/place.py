"""Where the environments of SGLang servers lie unless someone says otherwise."""

from __future__ import annotations

import os
from pathlib import Path

from agentrl.run.install.sglang_env.recipe import CPU, GPU, SGLANG_VERSION, Recipe


def default_folder(recipe: Recipe) -> Path:
    """Below the user's data folder (``XDG_DATA_HOME``, by default ``~/.local/share``)."""
    data = Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser()
    return data / "agentrl" / f"sglang-{SGLANG_VERSION}-{recipe.name}"


def default_python() -> Path:
    """The interpreter of the default environment: the GPU's where it is there, otherwise the
    CPU's.
    """
    found = [interpreter(default_folder(recipe)) for recipe in (GPU, CPU)]
    return next((python for python in found if python.exists()), found[-1])


def interpreter(folder: Path) -> Path:
    """The interpreter of the environment in a folder."""
    return folder / "bin" / "python"
