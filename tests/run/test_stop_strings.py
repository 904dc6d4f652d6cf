"""Stop strings of a configuration, and of an agent's request, reach the engine in process."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from agentrl.config.load import load_config
from agentrl.engines import EnginePlace, EngineSpec, EngineTraits
from agentrl.errors import MachineError
from agentrl.run.build import renderer_spec
from agentrl.run.engine import engine_plan
from agentrl.run.policy_service import serve_policy
from agentrl.types import GenerateRequest, SamplingParams, concat_ids
from tests.run.tiny_run import CONFIG
from tests.run.tiny_task import build_model


async def test_an_engine_of_a_configuration_ends_at_a_stop_string(tmp_path: Path) -> None:
    build_model(tmp_path / "model", 0)
    (tmp_path / "config.yaml").write_text(CONFIG, encoding="utf-8")
    stage = load_config(tmp_path / "config.yaml").resolved_stages()[-1]
    renderer = renderer_spec(stage, tmp_path / "model").build()
    engine = pickle.loads(pickle.dumps(engine_plan(stage, tmp_path / "model"))).build()
    try:
        prompt = np.arange(5, 12, dtype=np.int32)
        greedy = SamplingParams(16, temperature=0.0)
        whole = await engine.generate(GenerateRequest("a", "a", prompt, greedy, seed=0))
        text = renderer.decode(concat_ids(whole.segments))
        stop = text[len(text) // 2 : len(text) // 2 + 3]
        cut = await engine.generate(
            GenerateRequest(
                "b", "b", prompt, SamplingParams(16, temperature=0.0, stop=(stop,)), seed=0
            )
        )
    finally:
        engine.close()
    assert stop
    assert (cut.finish_reason, cut.stop_string) == ("stop", stop)
    assert len(concat_ids(cut.segments)) < len(concat_ids(whole.segments))


class Told(EngineSpec):
    """An engine that cannot be built, and says what for."""

    section: ClassVar[str] = "told"

    def traits(self) -> EngineTraits:
        return EngineTraits(deterministic=True)

    def build(self, place: EnginePlace, sender: Any = None) -> Any:
        raise MachineError(f"stop_strings={place.stop_strings}")


def test_an_engine_that_clients_ask_takes_their_stop_strings(tmp_path: Path) -> None:
    build_model(tmp_path / "model", 0)
    (tmp_path / "config.yaml").write_text(CONFIG, encoding="utf-8")
    with pytest.raises(MachineError, match="stop_strings=True"):
        serve_policy(
            tmp_path / "model",
            tmp_path / "config.yaml",
            [f"rollout.engine={__name__}:Told"],
            host="127.0.0.1",
            port=0,
            out=None,
            idle_timeout_s=1.0,
            token="",
            hosts=(),
            announce=print,
        )
