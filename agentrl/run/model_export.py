"""Model export: which checkpoint of a run ``agentrl export model`` writes as a model's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentrl.controller.checkpoints.stage_checkpoints import (
    MANIFEST,
    step_of,
    whole_checkpoints,
)
from agentrl.errors import DataError
from agentrl.store import RunDirectory

__all__ = ["find_checkpoint"]

_ROLES = ("actor", "reward_model")
"""What a stage is about; a critic is of use to nobody else."""


def find_checkpoint(run: RunDirectory, *, stage: str | None, step: int | None) -> Path:
    """The folder of the trained model in a checkpoint.

    Args:
        run: the run.
        stage: which; None for the one whose checkpoint is the newest.
        step: which; None for the newest.

    Raises:
        DataError: the run has no such checkpoint.
    """
    by_stage = map(whole_checkpoints, run.checkpoints_folder.glob(stage or "*"))
    steps = max(filter(None, by_stage), key=_written_at, default=[])
    if not steps:
        of = "" if stage is None else f" of a stage {stage!r}"
        raise DataError(
            f"{run.root} must have a checkpoint to export and has none{of}; set checkpoint.every, "
            "or export models/STAGE, which a finished stage leaves"
        )
    if step is not None:
        kept = dict.fromkeys(map(step_of, steps))
        if step not in kept:
            chosen = steps[-1].parent.name
            raise DataError(
                f"--step must be one that stage {chosen!r} of {run.root} keeps a checkpoint "
                f"of, {', '.join(map(str, kept))}, got {step}; checkpoint.keep_last keeps more"
            )
        steps = [path for path in steps if step_of(path) == step]
    for role in _ROLES:
        if (found := steps[-1] / role).is_dir():
            return found
    raise DataError(f"checkpoint {steps[-1]} holds none of {', '.join(_ROLES)}")


def _written_at(checkpoints: Sequence[Path]) -> int:
    """When the newest of them was."""
    return (checkpoints[-1] / MANIFEST).stat().st_mtime_ns
