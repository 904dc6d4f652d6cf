"""``agentrl try``, ``agentrl play`` and ``agentrl init``: a newcomer's first minutes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.waiting import DEADLINE_S

Agentrl = Callable[..., tuple[int, str, str]]
SUM = '{"expression": "2 * (3 + 4)"}'

TOOLS = '''
from agentrl.tools import ToolOutput, tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def end() -> ToolOutput:
    """End it."""
    return ToolOutput("done", reward=0.5, end=True)


class Pad:
    """Notes."""

    def __init__(self, first: str) -> None:
        self.notes = [first]

    async def setup(self) -> None:
        self.notes.append("set up")

    @tool
    def note(self, text: str) -> str:
        """Add a note and read them all."""
        self.notes.append(text)
        return ", ".join(self.notes)

    @tool
    def clear(self) -> str:
        """Clear."""
        return "cleared"
'''


@pytest.fixture
def project(tmp_path: Path, agentrl: Agentrl) -> Path:
    """What ``agentrl init`` writes."""
    assert agentrl("init", tmp_path / "first")[0] == 0
    return tmp_path / "first"


@pytest.fixture
def tools(tmp_path: Path) -> str:
    (tmp_path / "tools.py").write_text(TOOLS)
    return str(tmp_path / "tools.py")


# --- try


def test_a_tool_shows_its_schema_alone_without_arguments(
    agentrl: Agentrl, tools: str
) -> None:
    code, out, _ = agentrl("try", f"{tools}:add")
    assert code == 0
    assert json.loads(out)["function"]["parameters"]["required"] == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "arguments", "code", "told"),
    [
        ("add", '{"a": 1, "b": 2}', 0, r"answer (ok, "),
        ("add", '{"a": "1", "b": 2}', 1, "answer (error invalid_arguments, "),
        ("add", '{"a": 1}', 1, "answer (error invalid_arguments, "),
        ("add", '{"a": 1, "b"', 1, "answer (error malformed, "),
        ("end", "{}", 0, "reward 0.5, ends the task"),
    ],
)
def test_a_tool_answers_as_in_an_episode(
    agentrl: Agentrl, tools: str, name: str, arguments: str, code: int, told: str
) -> None:
    found, out, err = agentrl("try", f"{tools}:{name}", arguments)
    assert found == code, err
    assert told in out


def test_a_toolset_is_made_with_args_set_up_and_called_by_name(
    agentrl: Agentrl, tools: str
) -> None:
    given = ("try", f"{tools}:Pad", '{"text": "mine"}', "--args", '{"first": "one"}')
    assert agentrl(*given, "--name", "note")[1].endswith("one, set up, mine\n")
    code, _, err = agentrl(*given)
    assert code == 2
    assert "--name must be one of the tools note, clear, got none" in err


def test_a_built_in_tool_is_tried_by_its_name(agentrl: Agentrl) -> None:
    assert agentrl("try", "calculator", SUM)[1].endswith("14\n")


def test_a_configuration_brings_the_prompt_and_the_task(
    agentrl: Agentrl, project: Path
) -> None:
    given = (
        "try",
        "weigh",
        "{}",
        "--config",
        project / "config.yaml",
        "--task",
        "parcel-3",
    )
    code, out, err = agentrl(*given)
    assert (code, err) == (0, "")
    prompt = out[out.index("the prompt of task 'parcel-3', ") :]
    assert '<tools>\n{"type": "function", "function": {"name": "weigh"' in prompt
    assert prompt.endswith("):\n281\n")


def test_what_is_no_task_is_named(agentrl: Agentrl, project: Path) -> None:
    given = ("try", "weigh", "--config", project / "config.yaml", "--task", "parcel-99")
    code, _, err = agentrl(*given)
    assert code == 2
    assert "--task must be the id of a task of data.train, or its number below 64" in err


# --- play


@pytest.fixture
def play(
    project: Path, agentrl: Agentrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Agentrl:
    def call(lines: str, *more: str) -> tuple[int, str, str]:
        (tmp_path / "lines").write_text(lines)
        with (tmp_path / "lines").open() as file:
            monkeypatch.setattr(sys, "stdin", file)
            return agentrl("play", project / "config.yaml", *more)

    return call


def test_a_person_plays_an_episode_and_sees_the_reward(play: Agentrl) -> None:
    code, out, err = play('heavy\n{"name": "weigh", "arguments": {}}\n281\n', "--task", "3")
    assert code == 0, err
    assert "tool weigh: Weigh the parcel, in grams." in out
    assert "user | How heavy is the parcel?" in out
    assert "user | Weigh it first." in out
    assert "tool | 281" in out
    assert out.endswith("terminated   reward 1 = correct 1\n")


def test_a_reward_model_that_scores_nothing_is_told(play: Agentrl) -> None:
    said = '{"name": "weigh", "arguments": {}}\n281\n'
    code, out, err = play(said, "--task", "3", "reward.model.path=scorer")
    assert code == 0, err
    assert "reward.model scores nothing here" in out


def test_a_faulty_call_is_told_and_the_end_of_the_input_leaves_the_episode(
    play: Agentrl,
) -> None:
    code, out, err = play('{"name": "weigh", }\n')
    assert "tool | Error: the call is no valid JSON" in out
    assert code == 130
    assert "the input has ended" in err


def test_a_task_of_a_stream_is_looked_for_among_its_first(
    play: Agentrl, project: Path
) -> None:
    (project / "rows.jsonl").write_text(
        "".join(f'{{"prompt": "Say 281.", "id": "row-{n}"}}\n' for n in range(3))
    )
    # With a weight the stream has no end: its rows begin again.
    rows = "{data: rows.jsonl, weight: 1, name: own}"
    stream = f"data={{train: [{rows}], stream: true, shuffle: false}}"
    code, out, err = play("281\n", stream, "--task", "own/row-2")
    assert "task own/row-2" in out, err
    code, _, err = play("", stream, "--task", "row-9")
    assert code == 2
    assert (
        "--task must be the id of a task of data.train among the first 1000 of the stream"
        in err
    )


def test_an_input_that_is_always_at_its_end_leaves_the_episode(
    project: Path, agentrl: Agentrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        code, _, err = agentrl("play", project / "config.yaml")
    assert (code, "the input has ended" in err) == (130, True)


# --- init


def test_a_first_project_has_at_most_60_lines_and_writes_nothing_over(
    project: Path, agentrl: Agentrl
) -> None:
    lines = [line for file in project.iterdir() for line in file.read_text().splitlines()]
    assert len(lines) <= 60
    code, _, err = agentrl("init", project)
    assert code == 2
    assert "task.py exists already; name another folder" in err


@pytest.mark.parametrize("folder", ["file", "file/below"])
def test_a_first_project_needs_a_folder(
    agentrl: Agentrl, tmp_path: Path, folder: str
) -> None:
    (tmp_path / "file").touch()
    code, _, err = agentrl("init", tmp_path / folder)
    assert code == 2
    assert f"{folder} must be a folder that can be made and written: " in err
    assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_a_first_project_passes_its_test_its_check_and_trains_two_steps(
    project: Path, agentrl: Agentrl
) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(project)]
    tested = subprocess.run(
        command,
        cwd=project,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout
    assert "1 passed" in tested.stdout
    config = project / "config.yaml"
    assert agentrl("check", config)[0] == 0
    run = project / "run"
    code, _, err = agentrl("train", config, f"run.dir={run}", "placement.mode=inline")
    assert code == 0, err
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [step["optim/grad_norm"] > 0 for step in steps] == [True, True]
