"""Install command: ``agentrl install``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from agentrl.cli.terminal import say


def install_command(
    engine: str,
    /,
    *,
    folder: Annotated[Path | None, Parameter(name="--dir")] = None,
    gpu: Annotated[bool, Parameter(negative=())] = False,
    torch_index: str | None = None,
) -> None:
    """Build the environment that a server of another program runs in, beside agentrl's own.

    Parameters
    ----------
    engine
        The engine that starts such servers, such as sglang. Takes minutes, and about 2 GB without
        a GPU.
    folder
        Where; by default below the user's data folder, where rollout.ENGINE.python finds it.
    gpu
        With CUDA; by default for the CPU.
    torch_index
        A package index that has torch for the CPU, instead of PyTorch's own.
    """
    from agentrl.engines.find import server_environment

    environment = server_environment(engine)
    recipe = environment.recipe("gpu" if gpu else "cpu")
    place = (folder or environment.folder(recipe)).expanduser().absolute()
    python, made = environment.build(place, recipe, torch_index=torch_index, tell=say)
    state = "ready" if made else "there already"
    say(f"{environment.product} {environment.version} is {state}: {python}")
    if folder is not None:
        say(f"use it with rollout.engine={engine} rollout.{environment.engine}.python={python}")
