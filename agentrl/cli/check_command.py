"""Check command: ``agentrl check``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.cli.terminal import say

if TYPE_CHECKING:
    from agentrl.config import RunConfig, StageConfig
    from agentrl.run.data.datasets import DataSet
    from agentrl.types import Task


_NUM_ROWS = 100


def check_command(config: Path, /, *overrides: str) -> None:
    """Check a configuration, its data, its tools, its environment and its rewards, without a model.

    One episode or two of each data set are played with a scripted policy, and scored.

    Parameters
    ----------
    config
        A YAML file (docs/configuration.md).
    overrides
        Settings that go before the file's, as key=value.
    """
    from agentrl.config import load_config
    from agentrl.types import SegmentKind

    loaded = load_config(config, overrides)
    _check_model(loaded)
    print("configuration: ok")
    for stage in loaded.resolved_stages():
        algorithm = stage.make_algorithm()
        how_long = (
            f"{stage.train.steps} steps"
            if stage.train.steps
            else f"{stage.train.epochs or 1} epochs"
        )
        print(
            f"stage {stage.name}: {stage.algorithm.name}, {how_long}, starts from "
            f"{stage.starts_from}"
        )
        if SegmentKind.POLICY in algorithm.trains:
            _check_rollouts(stage)
        else:
            _check_demonstrations(stage)


def _check_model(config: RunConfig) -> None:
    """Loads the function of the user's own that makes the model."""
    from agentrl.run.data.datasets import bind_named

    own = config.model
    if own.build is not None:
        bind_named(
            "model.build",
            own.build,
            config.base_dir,
            config.run.seed,
            own.build_args,
            config.base_dir,
        )


def _check_demonstrations(stage: StageConfig) -> None:
    from agentrl.run.data.datasets import DataSet
    from agentrl.training.data.demonstrations import read_demonstration
    from agentrl.training.data.preferences import check_pair

    rows = replace(DataSet.of_training(stage), limit=_NUM_ROWS).rows()
    pairs = stage.make_algorithm().learns_from == "preferences"
    for number, row in enumerate(rows):
        check_pair(row, number) if pairs else read_demonstration(row, number)
    what = "preference pairs" if pairs else "demonstrations"
    print(f"  {what}: the first {len(rows)} can be read")


def _check_rollouts(stage: StageConfig) -> None:
    from agentrl.agent_server import AgentProgramSpec
    from agentrl.envs import check_env
    from agentrl.errors import ConfigError, EnvError
    from agentrl.run.build import (
        LiveObjects,
        parser_name,
        player_spec,
        rubric_spec,
        task_sampler,
    )
    from agentrl.run.data.datasets import DataSet
    from agentrl.tools.parsers import load_parser

    tasks = _tasks(DataSet.of_training(stage))
    first = tasks[0]
    if stage.model.tool_parser != "auto":
        load_parser(parser_name(stage))
    task_sampler(stage, tasks)
    sets = {"data.train": (first, True)}
    for name, item in stage.eval.sets.items():
        data = replace(DataSet.held_out(stage, name), setting=f"eval.sets.{name}")
        sets[data.setting] = (_tasks(data)[0], item.tools)
    weights = rubric_spec(stage, LiveObjects()).build().weights
    parts = ", ".join(f"{weight:g} x {name}" for name, weight in weights.items())
    say(f"  reward: {parts or 'step rewards alone'}")
    env = player_spec(stage, LiveObjects())
    if isinstance(env, AgentProgramSpec):
        say(f"  program: {env.check()}, started once an episode")
    else:
        if env.sandbox is not None:
            say(f"  sandbox: {env.sandbox.check()}")
        try:
            check_env(env, first, seed=stage.run.seed)
        except EnvError as error:
            raise ConfigError(f"stage {stage.name}: {error}") from error
        say(f"  environment: keeps its contract on task {first.id!r}")
    _check_rewards(stage, sets)


def _check_rewards(stage: StageConfig, sets: Mapping[str, tuple[Task, bool]]) -> None:
    """Plays and scores episodes of each set."""
    from agentrl.run.rehearsal import rehearse

    bools: set[str] = set()
    say("  a scripted policy answers the first task of each set:")
    for setting, played in rehearse(stage, sets):
        episode = played.trajectory
        parts = (
            ", ".join(f"{name} {value:g}" for name, value in episode.rewards.items()) or "no part"
        )
        say(
            f"  {setting}: {played.said!r:.40} is scored {episode.reward:g} ({parts}), "
            f"{episode.status}"
        )
        bools |= set(played.bools)
    for name in sorted(bools):
        say(f"  reward: {name} gives a bool, which counts as 1.0 or 0.0; return a float to say so")


def _tasks(data: DataSet) -> list[Task]:
    tasks = data.tasks()
    say(f"  {data.setting}: {len(tasks)} tasks, the first is {tasks[0].id!r}")
    return tasks
