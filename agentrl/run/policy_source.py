"""A policy that is played and not trained: which weights a run or folder names, and a configuration
of them alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl.config import RunConfig, StageConfig, load_config
from agentrl.engines.find import engines_with
from agentrl.errors import ConfigError, DataError
from agentrl.run.engine import plays_by_messages
from agentrl.store import RunDirectory
from agentrl.store.model_folder import given_model
from agentrl.training.models.lora_spec import LoraSpec


def named_policy(
    named: Path, config: str | None, overrides: Sequence[str], *, command: str
) -> RunConfig:
    """A configuration of the policy alone that a command line names.

    Args:
        named: a run directory, a model folder, or a configuration that says which model.
        config: a configuration file; a run has its own.
        overrides: settings that go before the file's.
        command: how an error names the command, such as ``agentrl eval``.

    Raises:
        ConfigError: there is no configuration, or none that says which model.
        DataError: the run has finished no stage.
    """
    # The second word may be an override, where the first one is a run or a configuration.
    if config and "=" in config and not Path(config).is_file():
        overrides = [config, *overrides]
        config = None
    # The first word may be a configuration that says which model plays.
    if named.is_file() and config is None:
        stage = played_stage(load_config(named, overrides, trains=False))
        if plays_by_messages(stage):
            return stage_alone(stage, None)
        if stage.model.path is None:
            raise ConfigError(
                f"name the policy: {command} RUN|MODEL {named}; or set model.path, or set "
                "rollout.engine=openai"
            )
        if stage.model.lora.path is not None:
            raise ConfigError(
                f"model.lora.path={stage.model.lora.path!r} is an adapter, and a policy is played "
                "from the folder of a whole model; merge it (`agentrl export model --merge`, or "
                f"peft's merge_and_unload), and name that: {command} FOLDER {named}"
            )
        return stage_alone(stage, given_model(stage.model.path, stage.base_dir))
    is_run = (named / "run.json").is_file()
    if config is None and not is_run:
        raise ConfigError(
            f"{named} is no run directory, so name a configuration: {command} {named} CONFIG"
        )
    stage = played_stage(
        load_config(config or named / "config.resolved.yaml", overrides, trains=False)
    )
    if is_run:
        return stage_alone(stage, policy_folder(named, stage.base_dir), run=named)
    return stage_alone(stage, given_model(str(named), Path(), key="MODEL"))


def played_stage(config: RunConfig) -> StageConfig:
    """The last stage that trains a policy on its episodes, or the last of all where none does."""
    stages = config.resolved_stages()
    return next((s for s in reversed(stages) if s.plays), stages[-1])


def check_no_scorer(stage: StageConfig, what: str) -> None:
    """Refuses a reward model where no ranks hold it: its part would be left out without a word.

    Raises:
        ConfigError: ``reward.model`` is given; ``what`` is said to lack it.
    """
    if stage.reward.model.given:
        raise ConfigError(
            f"reward.model scores episodes on the ranks of a run, and {what} has none; leave it "
            "out by reward.model={}, or play a model by `agentrl eval` or `agentrl rollout` with "
            f"rollout.engine={engines_with('returns_ids')}"
        )


def policy_folder(named: Path, base_dir: Path) -> Path:
    """The model folder that ``named`` is, or that of the last policy's stage that the run in it
    finished.

    Args:
        named: a model folder, or a run directory.
        base_dir: where the user's own code lies now, if the run names some.

    Raises:
        DataError: the run has finished no stage.
    """
    if not (named / "run.json").is_file():
        return named
    directory = RunDirectory(named)
    moved = {"run.base_dir": str(base_dir)}
    stages = load_config(directory.config_path, moved, trains=False).resolved_stages()
    policies = [stage for stage in reversed(stages) if stage.learns_from != "preferences"]
    folders = [directory.models_folder / stage.name for stage in policies]
    finished = next((folder for folder in folders if folder.is_dir()), None)
    if finished is None:
        raise DataError(
            f"{named} has finished no stage, so it has no policy yet; go on with it "
            "by `agentrl train CONFIG --resume`, or name a model's folder"
        )
    return finished


def stage_alone(
    stage: StageConfig, model: Path | None, *, run: Path | None = None
) -> RunConfig:
    """A configuration of ``stage`` alone, with the weights in ``model``, or with those of a server.

    Args:
        stage: whole.
        model: the policy's folder; None where a server has it.
        run: the run whose earlier stage trained the reward model of ``stage``, if any.
    """
    sections: dict[str, Any] = {
        name: getattr(stage, name) for name in RunConfig.model_fields if name != "stages"
    }
    if model is not None:
        sections["model"] = stage.model.replace(
            path=str(model.resolve()), build=None, lora=LoraSpec()
        )
    for key in ("critic", "reference"):
        # An earlier stage is not part of this configuration.
        if sections[key].stage is not None:
            sections[key] = sections[key].replace(stage="model")
    scorer = stage.reward.model
    if run is not None and scorer.stage is not None:
        folder = (RunDirectory(run).models_folder / scorer.stage).resolve()
        sections["reward"] = stage.reward.replace(
            model=scorer.replace(stage=None, path=str(folder))
        )
    return RunConfig(**sections)
