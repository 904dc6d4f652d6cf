"""The SGLang engine of a stage, from its configuration."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

from agentrl.config import StageConfig
from agentrl.engines.sglang import SGLangEngineSpec, WeightSender
from agentrl.errors import ConfigError, MachineError
from agentrl.run.install.sglang_env import default_python
from agentrl.store import RunDirectory
from agentrl.weight_sync import BucketSender, FolderSender, GroupSender

__all__ = ["sglang_spec"]

_LONGEST_WAIT_S = 60.0
"""Of a request for a server to come back; after that its episode is tried again as a whole."""


def sglang_spec(stage: StageConfig, model: Path) -> SGLangEngineSpec:
    """How the stage's engine is built.

    Args:
        stage: whole.
        model: folder of the weights that it starts from.

    Raises:
        MachineError: no environment for servers is where the configuration says, or none was built.
        ConfigError: a server argument that agentrl sets itself, or an API key that is not in the environment.
    """
    rollout, own = stage.rollout, stage.rollout.sglang
    python = own.python or str(default_python())
    if not own.urls and not own.command and not Path(python).expanduser().is_file():
        where = (
            f"rollout.sglang.python='{own.python}' is no file"
            if own.python
            else f"there is none at {python}"
        )
        raise MachineError(
            f"rollout.engine='sglang' needs an environment with SGLang, and {where}; run `agentrl install sglang`, "
            "or set rollout.sglang.python or rollout.sglang.urls"
        )
    if own.api_key_env is not None and own.api_key_env not in os.environ:
        raise ConfigError(
            f"rollout.sglang.api_key_env='{own.api_key_env}' must name an environment variable that is set; "
            "export it, or leave the setting out"
        )
    return SGLangEngineSpec(
        model_path=str(model),
        folder=str((RunDirectory(Path(stage.run.dir or ".")).engine_folder / stage.name).resolve()),
        python=str(Path(python).expanduser()),
        command=own.command,
        urls=own.urls,
        num_engines=len(own.urls) or rollout.num_engines,
        dtype=stage.rollout_dtype,
        context_tokens=stage.context_tokens,
        tp_size=rollout.tp_size,
        max_running_requests=rollout.max_running_requests,
        kv_memory_fraction=rollout.kv_memory_fraction,
        page_size=rollout.page_size,
        kv_tokens=rollout.kv_tokens,
        server_args=own.server_args,
        env=own.env,
        device=own.device,
        stop_strings=bool(rollout.stop),
        sender=_sender(stage),
        startup_timeout_s=own.startup_timeout_s,
        call_timeout_s=own.call_timeout_s,
        update_timeout_s=own.update_timeout_s,
        unavailable_s=min(_LONGEST_WAIT_S, rollout.turn_timeout_s / 2),
        health_interval_s=own.health_interval_s,
        max_restarts=own.max_restarts,
        api_key=os.environ[own.api_key_env] if own.api_key_env else None,
    )


def _sender(stage: StageConfig) -> Callable[[], WeightSender]:
    own = stage.rollout.sglang
    if own.weight_sync == "disk":
        return FolderSender
    if own.weight_sync == "tensor":
        return BucketSender
    return functools.partial(
        GroupSender, "nccl" if own.device == "cuda" else "gloo", own.group_address
    )
