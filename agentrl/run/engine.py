"""Engine of a stage: its specification, and the values that the run derives for it."""

from __future__ import annotations

import functools
from pathlib import Path

from agentrl.config import StageConfig
from agentrl.engines.base import EnginePlace, EnginePlan, SharedGpus
from agentrl.engines.find import engines_with
from agentrl.errors import ConfigError
from agentrl.render import Renderer, RendererSpec, sees_images
from agentrl.run.build import renderer_spec
from agentrl.store import RunDirectory
from agentrl.training.device import FIRST_DEVICE
from agentrl.types.arrays import I32


def plays_by_messages(stage: StageConfig) -> bool:
    """Whether the stage's engine takes and gives messages alone: neither weights nor token ids."""
    return not stage.engine_spec.traits().returns_ids


def engine_plan(
    stage: StageConfig, model: Path, *, trainer_bytes: int = 0, serves_agents: bool = False
) -> EnginePlan:
    """How the stage's engine is built.

    Args:
        stage: whole.
        model: folder of the weights that it starts from.
        trainer_bytes: that the trainer may bring to a rank's GPU while the engine serves there.
        serves_agents: whether agents ask for turns whatever the stage plays; they may ask for stop
            strings of their own.

    Raises:
        ConfigError: the engine cannot serve this model, or a setting cannot be used here.
        MachineError: the machine lacks what the engine needs.
    """
    rollout = stage.rollout
    spec = stage.engine_spec
    traits = spec.traits()
    if not traits.returns_ids:
        raise ConfigError(
            f"rollout.engine={rollout.engine!r} cannot be used for training; set rollout.engine to "
            f"{engines_with('returns_ids')}"
        )
    if sees_images(model) and not traits.images:
        raise ConfigError(
            f"rollout.engine={rollout.engine!r} reads text alone, and model.path='{model}' sees "
            f"images; set rollout.engine to {engines_with('returns_ids', 'images')}"
        )
    folder = RunDirectory(Path(stage.run.dir or ".")).engine_folder / stage.name
    place = EnginePlace(
        model=str(model),
        folder=str(folder.resolve()),
        dtype=stage.rollout_dtype,
        device=FIRST_DEVICE[stage.device],
        context_tokens=stage.context_tokens,
        max_running=rollout.max_running,
        kv_tokens=rollout.kv_tokens,
        deterministic=stage.run.deterministic,
        num_threads=stage.placement.host_pool.threads_per_rank,
        decode=functools.partial(_decoded, renderer_spec(stage, model)),
        stop_strings=bool(rollout.stop or stage.env.agent_command or serves_agents),
        shared=SharedGpus(trainer_bytes=trainer_bytes) if stage.sleeps else None,
        routed_experts=stage.replays_routing,
    )
    return EnginePlan(spec, spec.resolve(place))


def _decoded(renderer: RendererSpec, token_ids: I32) -> str:
    """Text in which an engine looks for stop strings; the renderer is built once a process."""
    return _renderer(renderer).decode(token_ids)


@functools.cache
def _renderer(spec: RendererSpec) -> Renderer:
    return spec.build()
