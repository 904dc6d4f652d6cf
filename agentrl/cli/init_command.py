"""Init command: ``agentrl init``."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from agentrl.cli.terminal import say
from agentrl.errors import ConfigError

_FILES = ("task.py", "test_task.py", "config.yaml")


def init_command(folder: Path, /) -> None:
    """Write a first project: a tool, an environment, a reward, a test and a configuration.

    It trains two steps of a tiny model on a CPU, and is meant to be changed.

    Parameters
    ----------
    folder
        Where; a file that is there already is never written over.
    """
    there = [name for name in _FILES if (folder / name).exists()]
    if there:
        raise ConfigError(f"{folder / there[0]} exists already; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    templates = files("agentrl.cli") / "project"
    for name in _FILES:
        text = (templates / f"{name}.txt").read_text(encoding="utf-8")
        (folder / name).write_text(text, encoding="utf-8")
    say(f"{folder}: {', '.join(_FILES)}")
    say(f"agentrl check {folder / 'config.yaml'}    # data, tools, environment and rewards")
    say(f"agentrl play {folder / 'config.yaml'}     # be the policy")
    say(f"agentrl train {folder / 'config.yaml'}    # two steps of a tiny model")
