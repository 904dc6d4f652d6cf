"""A policy that is played and not trained: which weights a run or folder names, and a configuration of them alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.errors import DataError
from agentrl.run.config import RunConfig, StageConfig, load_config
from agentrl.store import RunDirectory

__all__ = ["policy_folder", "stage_alone"]


def policy_folder(named: Path) -> Path:
    """The model folder that ``named`` is, or that of the last stage that the run in it finished.

    Raises:
        DataError: the run has finished no stage.
    """
    if not (named / "run.json").is_file():
        return named
    directory = RunDirectory(named)
    stages = load_config(directory.config_path, trains=False).resolved_stages()
    folders = [directory.models_folder / stage.name for stage in reversed(stages)]
    finished = next((folder for folder in folders if folder.is_dir()), None)
    if finished is None:
        raise DataError(f"{named} has finished no stage, so it has no policy yet; go on with it by --resume")
    return finished


def stage_alone(stage: StageConfig, model: Path | None) -> RunConfig:
    """A configuration of ``stage`` alone, with the weights in ``model``, or with those of a server."""
    sections: dict[str, Any] = {name: getattr(stage, name) for name in RunConfig.model_fields if name != "stages"}
    if model is not None:
        sections["model"] = stage.model.model_copy(update={"path": str(model.resolve()), "build": None})
    return RunConfig(**sections)
