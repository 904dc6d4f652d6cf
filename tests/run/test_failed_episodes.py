"""Episodes that an environment's fault ends: told below a share of the batch, above it the run
stops to be mended.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from agentrl.errors import EpisodesFailedError
from agentrl.store import read_jsonl
from tests.run.tiny_run import CONFIG, TASK, metrics, states, train

FAULTY = Path(__file__).with_name("faulty_env.py")
RL_ALONE = (
    "stages.warmup.steps=1",
    "stages.rl.steps=2",
    "stages.rl.eval.sets={}",
    "run.deterministic=false",
)

Play = Callable[..., str]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Trains with the faulty environment; what the terminal shows. The fault is there until it is
    mended.
    """
    monkeypatch.setenv("FAULTY", str(tmp_path / "fault"))
    (tmp_path / "fault").touch()
    tools = f'env: {{tools: ["{TASK}:add"], describe_tools_in_prompt: false}}'
    assert tools in CONFIG
    text = CONFIG.replace(tools, f'env: {{entry_point: "{FAULTY}:Faulty"}}')
    console = Console(file=io.StringIO(), width=300)

    def play(*overrides: str, resume: bool = False) -> str:
        train(tmp_path, *RL_ALONE, *overrides, text=text, resume=resume, console=console)
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    return play


def test_an_environment_whose_step_always_raises_stops_the_run_and_names_its_line(
    play: Play, tmp_path: Path
) -> None:
    with pytest.raises(EpisodesFailedError) as caught:
        play()
    text = str(caught.value)
    assert text.startswith("every one of the ")
    assert "episodes of step 1 of stage 'rl' ended as " in text
    assert f"Faulty.step raised KeyError: 'the map' ({FAULTY}:35)" in text
    assert f'File "{FAULTY}", line 25, in step' in text
    assert text.index("line 25, in step") < text.index("line 35, in _read_map")
    assert "agentrl/envs/drive.py" not in text
    assert not [row for row in metrics(tmp_path / "run") if row["stage"] == "rl"]


@pytest.mark.slow
def test_a_run_that_its_environment_stopped_goes_on_once_that_is_mended(
    play: Play, tmp_path: Path
) -> None:
    with pytest.raises(EpisodesFailedError):
        play()
    (tmp_path / "fault").unlink()
    play(resume=True)
    rows = list(read_jsonl(tmp_path / "run" / "ledger.jsonl"))
    trained = [row for row in rows if row["to"] == "trained"]
    assert {row["policy"] for row in rows} == {"main"}
    # the draws that failed are played again
    assert sorted(row["group_index"] for row in trained) == list(range(6))
    assert [row["step"] for row in metrics(tmp_path / "run") if row["stage"] == "rl"] == [
        1,
        2,
    ]


@pytest.mark.slow
def test_the_checkpoint_of_a_run_that_stopped_is_the_state_before_the_batch(
    play: Play, tmp_path: Path
) -> None:
    with pytest.raises(EpisodesFailedError):
        play()
    (checkpoint,) = (tmp_path / "run" / "checkpoints" / "rl").glob("step=*/manifest.json")
    assert checkpoint.parent.name == "step=000000"


def test_more_than_max_failed_frac_of_a_batch_stops_the_run(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULTY_EVERY", "3")
    with pytest.raises(
        EpisodesFailedError,
        match=r"\d+ of the \d+ episodes of step \d of stage 'rl' failed at one ",
    ):
        play("stages.rl.rollout.max_failed_frac=0.0")


@pytest.mark.slow
def test_below_max_failed_frac_the_terminal_says_how_many_and_why(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULTY_EVERY", "4")
    text = play("stages.rl.rollout.max_failed_frac=0.9", "stages.rl.train.batch_prompts=12")
    shown = [line for line in text.splitlines() if line.startswith("! step ")]
    assert shown
    assert all(
        f"Faulty.step raised KeyError: 'the map' ({FAULTY}:35)" in line for line in shown
    )
    counted = [
        row
        for row in read_jsonl(tmp_path / "run" / "events.jsonl")
        if row["event"] == "episodes_failed"
    ]
    assert [row["episodes"] for row in counted] == [
        sum(map(int, re.findall(r"(\d+) (?:failed|truncated)\(", line))) for line in shown
    ]
    assert states(tmp_path / "run")["trained"] > 0
