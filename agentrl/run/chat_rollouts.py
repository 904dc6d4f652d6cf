"""Chat rollouts: a rollout pool on an OpenAI-compatible server, without weights, ranks or a model
folder."""

from __future__ import annotations

from agentrl.config import StageConfig
from agentrl.config.engine_section import stage_engine
from agentrl.controller.cluster.episode_host import EpisodeHost
from agentrl.controller.cluster.rollout_pool import RolloutWorkerSpec
from agentrl.engines import EnginePlace, EnginePlan
from agentrl.run.build import LiveObjects, rollout_spec


def chat_rollouts(stage: StageConfig, live: LiveObjects) -> EpisodeHost:
    """A pool that plays a stage's groups on its server.

    Args:
        stage: whole, with ``rollout.engine: openai``.
        live: what was given from Python.

    Raises:
        ConfigError: ``rollout.openai`` describes no server.
    """
    place = EnginePlace(model="", max_running=stage.rollout.max_running)
    engine = EnginePlan(stage_engine(stage), place)
    rollout = rollout_spec(stage, live, None)
    pool = EpisodeHost()
    pool.setup(RolloutWorkerSpec(engine, rollout))
    return pool
