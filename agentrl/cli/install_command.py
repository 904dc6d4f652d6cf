"""Install command: ``agentrl install``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from agentrl.cli.terminal import say


def install_command(
    what: Literal["sglang"],
    /,
    *,
    folder: Annotated[Path | None, Parameter(name="--dir")] = None,
    gpu: Annotated[bool, Parameter(negative=())] = False,
    torch_index: str | None = None,
) -> None:
    """Build the environment that a server of another program runs in, beside agentrl's own.

    Parameters
    ----------
    what
        sglang: SGLang, for rollout.engine=sglang. Takes minutes, and about 2 GB without a GPU.
    folder
        Where; by default below the user's data folder, where rollout.sglang.python finds it.
    gpu
        With CUDA; by default for the CPU.
    torch_index
        A package index that has torch for the CPU, instead of PyTorch's own.
    """
    from agentrl.run.install.sglang_env.build import build_environment
    from agentrl.run.install.sglang_env.recipe import CPU, GPU, SGLANG_VERSION, default_folder

    # There is one choice so far.
    del what
    recipe = GPU if gpu else CPU
    place = (folder or default_folder(recipe)).expanduser().absolute()
    python, made = build_environment(place, recipe, torch_index=torch_index, tell=say)
    say(f"SGLang {SGLANG_VERSION} is {'ready' if made else 'there already'}: {python}")
    if folder is not None:
        say(f"use it with rollout.engine=sglang rollout.sglang.python={python}")
