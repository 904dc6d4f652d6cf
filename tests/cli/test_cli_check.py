"""``agentrl check`` plays an episode of each data set with a scripted policy, and scores it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.config.load import load_config
from agentrl.errors import RewardError
from agentrl.run.build import LiveObjects, rubric_spec
from agentrl.run.data.task_table import TaskStream
from agentrl.run.rehearsal.prompt_lengths import spread
from agentrl.types import Status, Task

Agentrl = Callable[..., tuple[int, str, str]]

TASK = """
from agentrl.envs import Env, exact_answer
from agentrl.tools import tool
from agentrl.types import Observation, StepResult, Task

CALLED = []


@tool
def look(word: str) -> str:
    "Looks a word up."
    CALLED.append(word)
    return word


def tasks(split="train"):
    for number in range(3):
        yield Task(f"{split}-{number}", ({"role": "user", "content": "What?"},), answer=f"{split} {number}")


def nothing(episode):
    if episode.final_text == episode.task.answer:
        return 1.0


def not_a_number(episode):
    return float("nan")


def text(episode):
    return "1.0"


def raises(episode):
    import json

    return json.loads(episode.final_text)["score"]


async def raises_later(episode):
    return episode.turns[0].calls[7]


def only_when_right(episode):
    if episode.final_text == episode.task.answer:
        return 1 / 0
    return 0.0


def held_out(episode):
    if episode.task.id.startswith("held"):
        raise KeyError("held")
    return 0.5


def boolean(episode):
    return episode.final_text == episode.task.answer


def weighed(episode, factor):
    return None


def alone():
    return 1.0


def no_sampler(tasks, seed):
    return list(tasks)


number = 3
"""  # noqa: E501
LINE = {
    name: n
    for n, line in enumerate(TASK.splitlines(), 1)
    for name in re.findall(r"^(?:async )?def (\w+)", line)
}


@pytest.fixture
def check(tmp_path: Path, agentrl: Agentrl) -> Callable[..., tuple[int, str, str]]:
    (tmp_path / "task.py").write_text(TASK)

    def call(reward: str, *overrides: str) -> tuple[int, str, str]:
        (tmp_path / "config.yaml").write_text(
            "model: {path: some/model}\ndata: task.py:tasks\nenv: {tools: [task.py:look]}\n"
            f"reward: {{functions: [{reward}]}}\n"
            "eval: {sets: {own: {data: task.py:tasks, args: {split: held}}}}\n"
        )
        return agentrl("check", tmp_path / "config.yaml", *overrides)

    return call


@pytest.mark.parametrize(
    ("reward", "told"),
    [
        ("task.py:nothing", r"must be a finite number, got None; .*task\.py:{nothing}\)"),
        (
            "task.py:not_a_number",
            r"must be a finite number, got nan; .*task\.py:{not_a_number}\)",
        ),
        ("task.py:text", r"must be a finite number, got '1\.0'; .*task\.py:{text}\)"),
        ("task.py:raises", r"raised JSONDecodeError: .*task\.py:{raises}\+3\)"),
        ("task.py:raises_later", r"raised IndexError: .*task\.py:{raises_later}\+1\)"),
        (
            "task.py:only_when_right",
            r"raised ZeroDivisionError: .*task\.py:{only_when_right}\+2\)",
        ),
        (
            "task.py:held_out",
            r"eval\.sets\.own: .* raised KeyError: 'held' \(.*task\.py:{held_out}\+2\)",
        ),
        (
            "{function: task.py:weighed, args: {factor: 2}}",
            r"got None; .*task\.py:{weighed}\)",
        ),
    ],
)
def test_a_reward_that_gives_no_number_is_found_with_its_line(
    check: Callable[..., tuple[int, str, str]], reward: str, told: str
) -> None:
    told = re.sub(
        r"\{(\w+)\}(?:\\\+(\d))?", lambda m: str(LINE[m[1]] + int(m[2] or 0)), told
    )
    code, _, err = check(reward)
    assert code == 2
    assert re.search(told, err), err
    assert len(err.splitlines()) == 1  # a sentence, and no traceback


@pytest.mark.parametrize(
    ("reward", "override", "told"),
    [
        ("owm.py:f", "", "reward.functions.N.function='owm.py:f' cannot be loaded: there"),
        ("task.py:number", "", "must be a function or class that takes (episode), got int"),
        ("task.py:alone", "", "must take (episode), but has the signature ()"),
        (
            "task.py:raises",
            "data=task.py:number",
            "data.train='task.py:number' must be a function",
        ),
        (
            "task.py:raises",
            "data=owm.py:tasks",
            "data.train='owm.py:tasks' cannot be loaded",
        ),
        (
            "task.py:raises",
            "data=task.py:weighed",
            "must take no arguments, or seed, but has the",
        ),
        (
            "task.py:raises",
            "env.entry_point=owm.py:E",
            "env.entry_point='owm.py:E' cannot be load",
        ),
        (
            "task.py:raises",
            "model={build: task.py:alone}",
            "model.build='task.py:alone' must take",
        ),
        (
            "task.py:raises",
            "train.loop=task.py:no",
            "train.loop='task.py:no' cannot be loaded",
        ),
        (
            "task.py:raises",
            "checkpoint.copy_to=foo://x",
            "checkpoint.copy_to='foo://x' cannot be",
        ),
        (
            "task.py:raises",
            "run.replay=nope",
            "run.replay='nope' must name a run: 'nope' is not",
        ),
        (
            "task.py:raises",
            "model.tool_parser=os:no",
            "model.tool_parser='os:no' cannot be loaded",
        ),
        (
            "task.py:raises",
            "model.tool_parser=task.py:number",
            "task.py:number' is no parser",
        ),
        (
            "task.py:raises",
            "model.tool_parser=os:sep",
            "model.tool_parser='os:sep' is no parser",
        ),
        (
            "task.py:raises",
            "rollout.engine=os:no",
            "rollout.engine='os:no' cannot be loaded",
        ),
        (
            "agentrl.envs:exact_answer",
            "data.sampler=task.py:no_sampler",
            "data.sampler.name='task.py:no_sampler' must return an object with the methods next()",
        ),
    ],
)
def test_a_function_of_the_users_that_does_not_fit_names_its_setting(
    check: Callable[..., tuple[int, str, str]], reward: str, override: str, told: str
) -> None:
    code, _, err = check(reward, *([override] if override else []))
    assert code == 2
    assert told in err
    assert len(err.splitlines()) == 1


def test_every_task_of_a_set_is_played_twice_and_scored(
    check: Callable[..., tuple[int, str, str]],
) -> None:
    code, out, err = check("agentrl.envs:exact_answer")
    assert (code, err) == (0, "")
    scored = re.findall(
        r"(\S+): '(.*)': the (.*) is scored (\S+) of 1 \(.*\), terminated", out
    )
    assert scored == [
        (name, task, script, score)
        for name, split in (("data.train", "train"), ("eval.sets.own", "held"))
        for task in (f"{split}-0", f"{split}-2")
        for script, score in (("empty answer", "0"), ("task's answer", "1"))
    ]


def test_a_bool_is_told(check: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = check("task.py:boolean")
    assert code == 0
    assert "reward: boolean gives a bool, which counts as 1.0 or 0.0; return a float" in out


def test_no_tool_of_the_users_is_called(
    check: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    from agentrl.types import load_object

    assert check("agentrl.envs:exact_answer")[0] == 0
    assert load_object("task.py:CALLED", tmp_path) == []


async def test_in_training_too_an_error_names_the_users_line(tmp_path: Path) -> None:
    from agentrl.envs import EpisodeView

    (tmp_path / "task.py").write_text(TASK)
    text = "model: {path: m}\ndata: task.py:tasks\nreward: {functions: [task.py:raises]}\n"
    (tmp_path / "config.yaml").write_text(text)
    (stage,) = load_config(tmp_path / "config.yaml").resolved_stages()
    rubric = rubric_spec(stage, LiveObjects()).build()
    view = EpisodeView(
        Task("t"), ({"role": "assistant", "content": "?"},), (), Status("terminated")
    )
    with pytest.raises(
        RewardError, match=rf"raised JSONDecodeError: .*task\.py:{LINE['raises'] + 3}\)$"
    ):
        await rubric.score(view)


CALL = '{"id": "c", "type": "function", "function": {"name": "add", "arguments": "{ARGUMENTS}"}}'


@pytest.mark.parametrize(("arguments", "code"), [(r"{\"a\": 1}", 0), (r"{\"a\": ", 3)])
def test_demonstrations_are_read_as_training_reads_them(
    agentrl: Agentrl, tmp_path: Path, arguments: str, code: int
) -> None:
    line = f'{{"role": "assistant", "content": null, "tool_calls": [{CALL.replace("{ARGUMENTS}", arguments)}]}}'  # noqa: E501
    (tmp_path / "rows.jsonl").write_text(
        f'{{"messages": [{{"role": "user", "content": "?"}}, {line}]}}\n'
    )
    (tmp_path / "config.yaml").write_text(
        "model: {path: m}\nalgorithm: sft\ndata: rows.jsonl\ntrain: {steps: 1}\n"
    )
    found, out, err = agentrl("check", tmp_path / "config.yaml")
    assert found == code, err
    told = (
        "demonstrations: the first 1 can be read"
        if code == 0
        else "demonstration 0: messages[1]: tool_calls[0]"
    )
    assert told in out + err


def test_the_first_tasks_of_a_stream_are_played(
    check: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    rows = [
        f'{{"prompt": "What?", "answer": "the {n}th", "id": "row-{n}"}}\n' for n in range(5)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(rows))
    code, out, err = check(
        "agentrl.envs:exact_answer",
        "data={train: rows.jsonl, stream: true, shuffle: false}",
    )
    assert (code, err) == (0, "")
    assert "data.train: a stream of tasks, the first is 'row-0'" in out
    assert set(re.findall(r"data\.train: '(row-\d)'", out)) == {"row-0", "row-1"}


def test_lengths_are_of_the_first_tasks_of_a_stream_without_an_end() -> None:
    tasks = TaskStream(lambda: (Task(str(n), (), None) for n in itertools.count()))
    assert [task.id for task in spread(tasks, 3)] == ["0", "1", "2"]
