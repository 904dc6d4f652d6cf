"""Chat rollouts: a rollout pool on an OpenAI-compatible server, without weights, ranks or a model
folder."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from agentrl.config import StageConfig
from agentrl.controller.cluster.episode_host import EpisodeHost
from agentrl.controller.cluster.rollout_pool import RolloutWorkerSpec
from agentrl.engines.openai import OpenAIEngineSpec
from agentrl.errors import ConfigError
from agentrl.llm import ChatServerSpec
from agentrl.run.build import LiveObjects, rollout_spec

__all__ = ["chat_engine_spec", "chat_rollouts"]


def chat_engine_spec(stage: StageConfig) -> OpenAIEngineSpec:
    """The server that ``rollout.engine_args`` describes.

    Raises:
        ConfigError: a key is missing, unknown or out of its range.
    """
    given = {"max_concurrent": stage.rollout.max_running, **stage.rollout.engine_args}
    known = ChatServerSpec.__match_args__
    if unknown := sorted(given.keys() - set(known)):
        raise ConfigError(
            f"rollout.engine_args.{unknown[0]} is no setting of rollout.engine='openai', which has {', '.join(known)}"
        )
    try:
        server = TypeAdapter(ChatServerSpec).validate_json(json.dumps(given), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        if isinstance(cause := first.get("ctx", {}).get("error"), ConfigError):
            raise cause from None
        raise ConfigError(
            f"rollout.engine_args.{first['loc'][0]} of rollout.engine='openai': {first['msg']}; the settings are "
            f"{', '.join(known)}, such as base_url: http://127.0.0.1:8000/v1 and model: NAME"
        ) from None
    return OpenAIEngineSpec(server)


def chat_rollouts(stage: StageConfig, live: LiveObjects, base_dir: Path) -> EpisodeHost:
    """A pool that plays a stage's groups on its server.

    Args:
        stage: whole, with ``rollout.engine: openai``.
        live: what was given from Python.
        base_dir: where references start.

    Raises:
        ConfigError: ``rollout.engine_args`` describe no server.
    """
    rollout = rollout_spec(stage, live, base_dir=base_dir, model=None)
    pool = EpisodeHost()
    pool.setup(RolloutWorkerSpec(chat_engine_spec(stage), rollout))
    return pool
