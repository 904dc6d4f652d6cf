"""``agentrl check``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl.run.config import StageConfig
    from agentrl.types import Task

__all__ = ["check_command"]


def check_command(config: Path, /, *overrides: str) -> None:
    """Check a configuration, its data, its tools and its environment, without a model.

    Parameters
    ----------
    config
        A YAML file (docs/configuration.md).
    overrides
        Settings that go before the file's, as key=value.
    """
    from agentrl.run.config import load_config
    from agentrl.types import SegmentKind

    loaded = load_config(config, overrides)
    print("configuration: ok")
    for stage in loaded.resolved_stages():
        algorithm = stage.make_algorithm()
        how_long = f"{stage.train.steps} steps" if stage.train.steps else f"{stage.train.epochs or 1} epochs"
        print(f"stage {stage.name}: {stage.algorithm.name}, {how_long}, starts from {stage.starts_from}")
        if SegmentKind.POLICY in algorithm.trains:
            _check_rollouts(stage)
        else:
            _check_demonstrations(stage)


def _check_demonstrations(stage: StageConfig) -> None:
    from agentrl.run.data import endless_rows

    rows = endless_rows(
        str(stage.data.train),
        stage.data.args,
        base_dir=Path(stage.run.base_dir or "."),
        seed=stage.run.seed,
        setting="data.train",
        skip=0,
    )
    print(f"  demonstrations: ok, the first is a {type(next(rows)).__name__}")


def _check_rollouts(stage: StageConfig) -> None:
    from agentrl.cli.terminal import say
    from agentrl.envs import check_env
    from agentrl.errors import ConfigError, EnvError
    from agentrl.rollouts.policy_server import ProgramSpec
    from agentrl.run.build import LiveObjects, player_spec, rubric_spec

    base_dir = Path(stage.run.base_dir or ".")
    tasks = _tasks(stage, str(stage.data.train), stage.data.args, "data.train", None)
    for name, item in stage.eval.sets.items():
        _tasks(stage, item.data, item.args, f"eval.sets.{name}", item.num_tasks)
    weights = rubric_spec(stage, LiveObjects(), base_dir).build().weights
    say(f"  reward: {', '.join(f'{weight:g} x {name}' for name, weight in weights.items()) or 'step rewards alone'}")
    env = player_spec(stage, LiveObjects(), base_dir)
    if isinstance(env, ProgramSpec):
        say(f"  program: {env.check()}, started once an episode")
        return
    if env.sandbox is not None:
        say(f"  sandbox: {env.sandbox.check()}")
    try:
        check_env(env, tasks[0], seed=stage.run.seed)
    except EnvError as error:
        raise ConfigError(f"stage {stage.name}: {error}") from error
    print(f"  environment: keeps its contract on task {tasks[0].id!r}")


def _tasks(stage: StageConfig, data: str, args: dict[str, object], setting: str, limit: int | None) -> list[Task]:
    from agentrl.run.data import load_tasks

    base_dir = Path(stage.run.base_dir or ".")
    tasks = load_tasks(data, args, base_dir=base_dir, seed=stage.run.seed, setting=setting, limit=limit)
    print(f"  {setting}: {len(tasks)} tasks, the first is {tasks[0].id!r}")
    return tasks
