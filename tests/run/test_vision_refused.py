"""A model that sees is refused by name where images do not reach: the engine in process."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.run.engine import engine_plan
from tests.tiny_vision import write_qwen_vl


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen_vl(tmp_path_factory.mktemp("qwen-vl"))


def test_the_engine_in_process_is_refused(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("data: {train: rows.jsonl}\nreward: {functions: ['reward.py:reward']}\n")
    (stage,) = load_config(config, [f"model.path={folder}"]).resolved_stages()
    with pytest.raises(ConfigError, match=r"rollout\.engine='torch' reads text alone"):
        engine_plan(stage, folder)
