"""An engine outside the package: it trains, is evaluated, is updated and is restarted, with its own
section.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from agentrl.config.load import load_config
from agentrl.errors import ConfigError, EngineError
from agentrl.run.trainer import Trainer
from tests.run.tiny_run import CONFIG

OWN = Path(__file__).with_name("own_engine.py")
SETTINGS = (f"rollout.engine={OWN}:OwnEngineSpec", "rollout.own.greeting=hello")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


def opened(config: Path, *overrides: str, settings: Sequence[str] = SETTINGS) -> Trainer:
    run_dir = f"run.dir={config.parent / 'run'}"
    return Trainer(load_config(config, [run_dir, "eval.every=null", *settings, *overrides]))


def noted(config: Path) -> list[str]:
    (log,) = (config.parent / "run").rglob("own.log")
    return log.read_text().splitlines()


@pytest.mark.slow
def test_it_trains_is_evaluated_updated_and_restarted(config: Path) -> None:
    with opened(config, "train.steps=2") as trainer:
        trainer.train()
        assert "sums" in trainer.evaluate()
    updates = [f"update {version}" for version in range(3)]
    assert noted(config) == ["built hello 1", *updates, "closed"]
    with opened(config, "train.steps=3") as trainer:
        trainer.train(resume=True)
    later = noted(config)[5:]
    assert later[0] == "built hello 1"
    assert later[-2:] == ["update 3", "closed"]


@pytest.mark.slow
def test_a_server_whose_probe_differs_ends_the_run_with_a_checkpoint(config: Path) -> None:
    with (
        opened(config, "train.steps=4", "rollout.own.wrong_version=3") as trainer,
        pytest.raises(
            EngineError, match=r"after publish\(3\) own server computes with other"
        ),
    ):
        trainer.train()
    saved = sorted((config.parent / "run" / "checkpoints" / "rl").glob("step=*"))
    assert [folder.name for folder in saved] == ["step=000002", "step=000003"]
    with opened(config, "train.steps=4") as trainer:
        trainer.train(resume=True)
    assert noted(config)[-2:] == ["update 4", "closed"]


def test_its_specification_may_come_from_a_function(config: Path) -> None:
    load_config(
        config,
        [f"rollout.engine={OWN}:own_engine", "rollout.own={greeting: hi, repeats: 3}"],
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (SETTINGS[:1], "rollout.own.greeting is required"),
        (
            (*SETTINGS, "rollout.own.repeats=0"),
            "rollout.own.repeats must be at least 1, got 0",
        ),
        (
            (*SETTINGS, "rollout.own.repeat=2"),
            "unknown key rollout.own.repeat; did you mean",
        ),
        ((*SETTINGS, "rollout.onw.repeats=2"), "unknown key rollout.onw"),
        ((f"rollout.engine={OWN}:OwnEngin",), "has no 'OwnEngin'"),
        (
            (f"rollout.engine={OWN}:OwnEngine",),
            "must name a subclass of agentrl.engines.EngineSpec",
        ),
        (
            ("rollout.engine=scripted",),
            "rollout.engine='scripted' is unknown; choose one of openai, sglang, torch",
        ),
    ],
)
def test_a_fault_of_its_section_is_named_by_its_key(
    config: Path, settings: Sequence[str], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(config, settings)
    assert said in str(caught.value)
