"""Every shipped configuration is resolved, and trains two real steps of a tiny model."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from agentrl.cli.main import run as run_command_line
from agentrl.config.load import load_config
from agentrl.run.trainer import Trainer
from agentrl.store import read_jsonl
from tests.examples.published import SAMPLES, build_model, prepared
from tests.examples.shipped import CONFIGS, ROOT, small

TRAINED_ELSEWHERE = {
    "openai_agents": "tests/agent_server/agents/test_openai_agents_example.py",
    "preferences": "tests/examples/test_preferences_example.py",
}
"""Tests that train the very file, longer than here."""


@pytest.mark.parametrize("example", CONFIGS)
def test_its_dry_run_tells_every_stage(
    example: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run_command_line(["train", str(CONFIGS[example]), "--dry-run"]) == 0
    told = capsys.readouterr().out
    for stage in load_config(CONFIGS[example]).resolved_stages():
        assert stage.name in told


@pytest.mark.slow
@pytest.mark.parametrize(
    "example", [name for name in CONFIGS if name not in TRAINED_ELSEWHERE]
)
def test_it_trains_two_steps(example: str, tmp_path: Path) -> None:
    run, config = tmp_path / "run", CONFIGS[example]
    settings = [f"run.dir={run}", "placement.mode=inline", *small(config)]
    if example in SAMPLES:
        config = prepared(example, tmp_path)
        build_model(tmp_path / "model", example)
        settings.append(f"model.path={tmp_path / 'model'}")
    with Trainer(load_config(config, settings)) as trainer:
        trainer.train()
    rows = list(read_jsonl(run / "metrics.jsonl"))
    for stage in [stage.name for stage in load_config(config, settings).resolved_stages()]:
        norms = [row["optim/grad_norm"] for row in rows if row["stage"] == stage]
        assert len(norms) == 2
        assert all(math.isfinite(norm) and norm > 0 for norm in norms)


@pytest.mark.parametrize("example", TRAINED_ELSEWHERE)
def test_the_other_test_trains_it(example: str) -> None:
    text = (ROOT / TRAINED_ELSEWHERE[example]).read_text(encoding="utf-8")
    assert "config.yaml" in text
    assert f'"{example}"' in text
