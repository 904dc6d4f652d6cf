"""A model that sees is refused by name where images do not reach: an engine of text."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.run.engine import engine_plan
from tests.engines import own_engine
from tests.tiny_vision import write_qwen_vl

OWN = f"{Path(own_engine.__file__)}:OwnEngineSpec"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen_vl(tmp_path_factory.mktemp("qwen-vl"))


def test_an_engine_of_text_is_refused(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "data: {train: rows.jsonl}\nreward: {functions: ['reward.py:reward']}\n"
    )
    own = [f"model.path={folder}", f"rollout.engine={OWN}", "rollout.own.greeting=hello"]
    (stage,) = load_config(config, own).resolved_stages()
    told = r"own_engine.py:OwnEngineSpec' reads text alone.* 'vllm' or 'torch' or 'sglang'"
    with pytest.raises(ConfigError, match=told):
        engine_plan(stage, folder)
