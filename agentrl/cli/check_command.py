"""Check command: ``agentrl check``."""

from __future__ import annotations

from pathlib import Path

from agentrl.cli.terminal import PositiveCount
from agentrl.errors import CheckError


def check_command(config: Path, /, *overrides: str, tasks: PositiveCount = 2) -> None:
    """Check a configuration, its data, its tools, its environment and its rewards, without a model.

    Lengths of prompts are told in tokens where the model's tokenizer is here. Resources, tools and
    MCP servers are asked. Of each data set, tasks are played twice by a scripted policy: an empty
    answer must not get full marks, and the reference solution, where there is one, must. Hostile
    answers to the first task must get a reward, but not full marks, and not stall the event loop.

    It ends with 0 where all is well, 2 for a fault of the configuration or its code, 3 of the data
    or where your code exited, 4 where a service or the machine does not answer, 5 where a reward is
    wrong.

    Parameters
    ----------
    config
        A YAML file (docs/configuration.md).
    overrides
        Settings that go before the file's, as key=value.
    tasks
        Tasks of each data set that are played, spread over it.
    """
    from agentrl.config import load_config

    loaded = load_config(config, overrides)
    from agentrl.cli.views.config_check import check_config

    if faults := check_config(loaded, tasks):
        raise CheckError("\n".join(faults))
