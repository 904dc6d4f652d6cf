"""A run whose machine is lost goes on elsewhere from the copies of its checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agentrl.cli.main import run as command_line
from agentrl.errors import ConfigError, DataError
from agentrl.store import RunDirectory, read_jsonl
from tests.run.tiny_run import CONFIG, metrics, train

FEW = ("stages.0.steps=2", "stages.1.eval.every=null", "checkpoint.every=1")


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.s3)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/elsewhere"
    return str(request.getfixturevalue("s3_bucket"))


def learned(run: Path) -> list[list[object]]:
    """Of each step what the policy learned; the lost run evaluated its last step besides."""
    names = ("stage", "step", "reward/mean", "policy/loss", "optim/grad_norm")
    return [[row.get(name) for name in names] for row in metrics(run) if row["step"]]


@pytest.mark.slow
def test_a_lost_run_goes_on_elsewhere_as_if_nothing_had_been(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, *FEW, "train.steps=3", name="whole")
    copied = f"checkpoint.copy_to={url}"
    train(tmp_path, *FEW, "train.steps=2", copied, name="lost")
    shutil.rmtree(tmp_path / "lost")
    caplog.set_level("INFO", logger="agentrl")
    words = (f"run.dir={tmp_path}/found", *FEW, "train.steps=3", copied, "--resume")
    assert command_line(["train", f"{tmp_path}/config.yaml", *words]) == 0
    assert learned(tmp_path / "found") == learned(tmp_path / "whole")
    events = [getattr(one, "event", None) for one in caplog.records]
    assert events.count("checkpoint_fetched") == 2  # a stage each
    steps = [row[:2] for row in learned(tmp_path / "found")]
    assert steps[-3:] == [["rl", n] for n in (1, 2, 3)]
    timed = read_jsonl(RunDirectory(tmp_path / "found").phases_path)
    assert [[row["stage"], row["step"]] for row in timed] == steps


def test_a_resume_without_a_copy_says_that_there_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"run' has no run\.json, and .*=file://.*/none no copy"
    ):
        train(tmp_path, f"checkpoint.copy_to=file://{tmp_path}/none", resume=True)


def test_the_command_line_fetches_a_run_that_is_not_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, url = tmp_path / "config.yaml", tmp_path / "elsewhere"
    config.write_text(CONFIG, encoding="utf-8")
    RunDirectory.create(url, {"seed": 0}, CONFIG)
    manifest = url / "checkpoints" / "rl" / "step=000001" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("damaged", encoding="utf-8")
    copied = f"checkpoint.copy_to=file://{url}"
    words = ["train", str(config), f"run.dir={tmp_path}/run", copied, "--resume"]
    assert command_line(words) == 1
    # the run came, and after it what its copy lacks
    assert (tmp_path / "run" / "run.json").is_file()
    assert "manifest.json cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("checkpoint.copy_to=elsewhere", r"checkpoint\.copy_to must be a URL"),
        (
            "run.replay=nope",
            r"run\.replay='nope' must name a run: 'nope' is not .* not exist",
        ),
        ("model.build=nope.py:f", r"model\.build='nope\.py:f' cannot be loaded"),
    ],
)
def test_what_a_setting_names_is_looked_for_before_the_run_is_made(
    tmp_path: Path, setting: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        train(tmp_path, setting)
    assert not (tmp_path / "run").exists()
