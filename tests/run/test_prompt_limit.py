"""``data.max_prompt_tokens``: tasks with longer prompts are left out, counted and told, and never
drawn.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agentrl.config.load import load_config
from agentrl.errors import DataError
from agentrl.run.build import LiveObjects
from agentrl.run.data.prompt_limit import LeftOut, left_out_tasks
from agentrl.store import RunDirectory, TrajectoryReader, read_jsonl
from agentrl.types import Task
from tests.run.tiny_run import CONFIG, train
from tests.run.tiny_task import build_model

SHORT, LONG = "3 and 4?", "3 and 4? " * 12

OWN = f"""
from agentrl.envs import Env, ToolEnv
from agentrl.types import Observation, Task

def tasks(split="train", num_tasks=4):
    for n in range(num_tasks):
        text = {LONG!r} if n % 2 else {SHORT!r}
        yield Task(f"{{split}}-{{n}}", ({{"role": "user", "content": text}},), answer="7")

def long_ones():
    return [task for task in tasks() if len(task.messages[0]["content"]) > 20]

class Shortened(ToolEnv):
    async def reset(self, *, seed):
        return Observation(({{"role": "user", "content": "1"}},))

class Inherits(ToolEnv):
    pass
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "model"
    build_model(folder, 0)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "config.yaml").write_text(CONFIG, encoding="utf-8")
    return tmp_path


def left_out(folder: Path, model: Path, *overrides: str) -> LeftOut:
    stage = load_config(folder / "config.yaml", [*overrides]).resolved_stages()[-1]
    tasks = [
        Task("short", ({"role": "user", "content": SHORT},)),
        Task("long", ({"role": "user", "content": LONG},)),
    ]
    return left_out_tasks(stage, LiveObjects(), [*tasks, Task("none")], model)


def test_a_prompt_of_the_limit_stays_and_one_more_token_is_left_out(
    folder: Path, model: Path
) -> None:
    longest = left_out(folder, model, "data.max_prompt_tokens=1").longest
    found = left_out(folder, model, f"data.max_prompt_tokens={longest - 1}")
    assert (found.ids, found.num_tasks, found.longest) == (("long",), 3, longest)
    assert left_out(folder, model, f"data.max_prompt_tokens={longest}").ids == ()
    assert (
        "left out 1 of 3 tasks of data.train, whose prompts have more than "
        f"data.max_prompt_tokens={longest - 1}" in (str(found))
    )


@pytest.mark.parametrize(
    "more",
    [
        "env.describe_tools_in_prompt=true",
        "env.system_prompt=Add!",
        "env.entry_point=own.py:Inherits",
    ],
)
def test_the_prompt_is_what_the_environment_opens_with(
    folder: Path, model: Path, more: str
) -> None:
    bare = left_out(folder, model, "data.max_prompt_tokens=1").longest
    assert left_out(folder, model, more, "data.max_prompt_tokens=1").longest >= bare + (
        not more.endswith("Inherits")
    )


def test_an_environment_that_opens_otherwise_is_not_judged(
    folder: Path, model: Path
) -> None:
    assert (
        left_out(
            folder, model, "env.entry_point=own.py:Shortened", "data.max_prompt_tokens=1"
        ).ids
        == ()
    )


def trained(folder: Path, *overrides: str, resume: bool = False) -> tuple[Path, str]:
    shown = io.StringIO()
    steps = [
        "stages.warmup.steps=1",
        "stages.rl.eval={}",
        "train.batch_prompts=2",
        "checkpoint.every=1",
    ]
    settings = ("data.train=own.py:tasks", *steps, *overrides)
    run = train(folder, *settings, resume=resume, console=Console(file=shown, width=200))
    return run, shown.getvalue()


def drawn(run: Path) -> set[str]:
    return {summary.task_id for summary in TrajectoryReader(RunDirectory(run)).summaries()}


@pytest.mark.slow
def test_long_tasks_are_never_drawn_and_told(folder: Path) -> None:
    run, shown = trained(
        folder, "data.max_prompt_tokens=40", "train.steps=null", "train.epochs=2"
    )
    assert drawn(run) == {"train-0", "train-2"}
    # 2 epochs of 2 tasks
    assert (
        len([row for row in read_jsonl(run / "metrics.jsonl") if row["stage"] == "rl"]) == 2
    )
    (event,) = [
        row for row in read_jsonl(run / "events.jsonl") if row["event"] == "tasks_left_out"
    ]
    assert (event["ids"], event["num_tasks"], event["level"]) == (
        ["train-1", "train-3"],
        4,
        "warning",
    )
    assert "left out 2 of 4 tasks of data.train" in shown

    # a resumed run draws the same tasks, whatever its settings would leave out
    run, _ = trained(folder, "data.max_prompt_tokens=120", "train.steps=4", resume=True)
    assert drawn(run) == {"train-0", "train-2"}
    kept: dict[str, Any] = json.loads((run / "left_out.json").read_text())
    assert kept["rl"]["ids"] == ["train-1", "train-3"]


def test_a_data_set_of_which_nothing_is_left_is_an_error(folder: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"left out 2 of 2 .* no task is left: raise data\.max_prompt_tokens",
    ):
        trained(folder, "data.train=own.py:long_ones", "data.max_prompt_tokens=40")
