"""Skipped step: loads an optimizer step that a run skipped for its gradient, to repeat it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agentrl.config import load_config
from agentrl.controller.cluster.worker import RoleSpec
from agentrl.controller.recording.skipped_steps import read_shard
from agentrl.run.build import StageRecipe
from agentrl.run.stages import role_specs
from agentrl.store import RunDirectory
from agentrl.store.jsonl import parse_line
from agentrl.training import ActorSpec
from agentrl.types import BatchShard


def load_step(folder: Path, model: str | Path | None = None) -> tuple[RoleSpec, BatchShard]:
    """The role whose step it was, and the mini-batch as one rank gets it.

    Args:
        folder: of the step, in its run directory.
        model: the folder of a model; None for the weights that the step met, which the run keeps of
            its newest skipped steps.

    Raises:
        StoreError: the folder is in no run directory.
    """
    place = folder.resolve()
    record = parse_line(str(place / "step.json"), (place / "step.json").read_bytes())
    run = RunDirectory.open(place.parents[2])
    stages = load_config(run.config_path).resolved_stages(include_skipped=True)
    (stage,) = [own for own in stages if own.name == record["stage"]]
    # it may have been moved, with the blobs that are its images
    stage = stage.replace(run=stage.run.replace(dir=str(run.root)))
    weights = place / record["model"] if model is None else Path(model)
    recipe = StageRecipe(
        stage,
        stage.make_algorithm(),
        weights,
        reward_model=None,
        num_steps=record["num_steps"],
        # The step may be the critic's, or another learner's, and then these are its weights.
        others=dict.fromkeys(stage.others, weights),
    )
    spec = role_specs(recipe)[record["role"]]
    if isinstance(spec, ActorSpec):
        spec = replace(spec, detail="full")
    return spec, read_shard(place / "batch.npz")
