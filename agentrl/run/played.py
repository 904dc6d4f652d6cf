"""A policy that is played and not trained: which weights a run or folder names, and a configuration of them alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.errors import DataError
from agentrl.run.config import RunConfig, StageConfig, load_config
from agentrl.store import RunDirectory

__all__ = ["played_stage", "policy_folder", "stage_alone"]


def played_stage(config: RunConfig) -> StageConfig:
    """The last stage that trains a policy on its episodes, or the last of all where none does."""
    stages = config.resolved_stages()
    return next((s for s in reversed(stages) if s.make_algorithm().learns_from == "rollouts"), stages[-1])


def policy_folder(named: Path) -> Path:
    """The model folder that ``named`` is, or that of the last policy's stage that the run in it finished.

    Raises:
        DataError: the run has finished no stage.
    """
    if not (named / "run.json").is_file():
        return named
    directory = RunDirectory(named)
    stages = load_config(directory.config_path, trains=False).resolved_stages()
    policies = [stage for stage in reversed(stages) if stage.make_algorithm().learns_from != "preferences"]
    folders = [directory.models_folder / stage.name for stage in policies]
    finished = next((folder for folder in folders if folder.is_dir()), None)
    if finished is None:
        raise DataError(f"{named} has finished no stage, so it has no policy yet; go on with it by --resume")
    return finished


def stage_alone(stage: StageConfig, model: Path | None, *, run: Path | None = None) -> RunConfig:
    """A configuration of ``stage`` alone, with the weights in ``model``, or with those of a server.

    Args:
        stage: whole.
        model: the policy's folder; None where a server has it.
        run: the run whose earlier stage trained the reward model of ``stage``, if any.
    """
    sections: dict[str, Any] = {name: getattr(stage, name) for name in RunConfig.model_fields if name != "stages"}
    if model is not None:
        sections["model"] = stage.model.model_copy(update={"path": str(model.resolve()), "build": None})
    scorer = stage.reward.model
    if run is not None and scorer.stage is not None:
        given = {"stage": None, "path": str((RunDirectory(run).models_folder / scorer.stage).resolve())}
        sections["reward"] = stage.reward.model_copy(update={"model": scorer.model_copy(update=given)})
    return RunConfig(**sections)
