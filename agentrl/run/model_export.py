"""Model export: which checkpoint of a run ``agentrl export model`` writes as a model's folder."""

from __future__ import annotations

from pathlib import Path

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
    manifests = sorted(
        run.checkpoints_folder.glob(f"{stage or '*'}/step=*/manifest.json"),
        key=lambda path: (path.stat().st_mtime_ns, path),
    )
    if not manifests:
        of = "" if stage is None else f" of a stage {stage!r}"
        raise DataError(
            f"{run.root} must have a checkpoint to export and has none{of}; set checkpoint.every, "
            "or export models/STAGE, which a finished stage leaves"
        )
    chosen = manifests[-1].parent.parent
    steps = [path.parent for path in manifests if path.parent.parent == chosen]
    if step is not None:
        own = [path for path in steps if path.name.partition(".")[0] == f"step={step:06d}"]
        if not own:
            kept = sorted(
                {int(path.name.partition(".")[0].removeprefix("step=")) for path in steps}
            )
            raise DataError(
                f"--step must be one that stage {chosen.name!r} of {run.root} keeps a checkpoint "
                f"of, {', '.join(map(str, kept))}, got {step}; checkpoint.keep_last keeps more"
            )
        steps = own
    for role in _ROLES:
        if (found := steps[-1] / role).is_dir():
            return found
    raise DataError(f"checkpoint {steps[-1]} holds none of {', '.join(_ROLES)}")
