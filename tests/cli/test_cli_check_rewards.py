"""``agentrl check``: reference solutions, empty answers, lengths, the rendered prompt, services."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.envs import solution_of
from agentrl.errors import DataError
from agentrl.types import Task

Agentrl = Callable[..., tuple[int, str, str]]
EXAMPLES = Path(__file__).parents[2] / "examples"

TASK = '''
from pathlib import Path

from agentrl.tools import Resource, tool
from agentrl.types import Task


@tool
class Lamp:
    """Switch the lamp."""

    def __init__(self, context):
        self.context = context

    def __call__(self, on: bool) -> str:
        self.context.state["on"] = on
        return f"on is {on}"


def tasks():
    for number in range(5):
        yield Task(f"t{number}", ({"role": "user", "content": "Light, please."},), info=INFO)


INFO = {"solution": [{"tool_calls": [{"name": "lamp", "arguments": {"on": True}}]}, "It is on."]}


def is_on(episode):
    return float(episode.env.tool_state.get("on", False))


def marking(episode):
    episode.task.info["seen"] = True
    return is_on(episode)


def is_not_broken(episode):  # the fault of the field: an untouched world is right
    return float(episode.env.tool_state.get("on", True))


def trusting(episode):
    return max(is_on(episode), float("reward: 1" in episode.final_text))


def reading(episode):
    return is_on(episode) * float(episode.final_text.partition("answer: ")[2] or 1)


def never(episode):
    return 0.0


class Base:
    def __init__(self, path):
        self.path = path

    def ping(self):
        return f"{len(Path(self.path).read_text())} characters"


@tool
def read(db: Resource[Base]) -> str:
    """Read it."""
    return db.path
'''


@pytest.fixture
def check(tmp_path: Path, agentrl: Agentrl) -> Callable[..., tuple[int, str, str]]:
    (tmp_path / "task.py").write_text(TASK)

    def call(reward: str, *more: str) -> tuple[int, str, str]:
        (tmp_path / "config.yaml").write_text(
            "model: {path: some/model}\ndata: task.py:tasks\nenv: {tools: [task.py:Lamp]}\n"
            f"reward: {{functions: [task.py:{reward}]}}\n"
        )
        return agentrl("check", tmp_path / "config.yaml", *more)

    return call


def test_the_reference_solution_calls_the_tools_and_gets_full_marks(
    check: Callable[..., tuple[int, str, str]],
) -> None:
    code, out, err = check("is_on", "--tasks", "3")
    assert (code, err) == (0, "")
    assert out.count("the empty answer is scored 0 of 1") == 3
    assert out.count("the reference solution is scored 1 of 1") == 3
    assert [f"'{name}'" in out for name in ("t0", "t1", "t2", "t4")] == [
        True,
        False,
        True,
        True,
    ]
    assert 'calls lamp {"on":true}' in out  # without a tokenizer: the messages
    # the schema as the model reads it
    assert '"properties":{"on":{"type":"boolean"}}' in out


def test_what_user_code_changes_of_a_task_is_told(
    check: Callable[..., tuple[int, str, str]],
) -> None:
    told = "environment, tools or rewards change the seen of this task; each changes a copy"
    code, out, _ = check("marking", "--tasks", "1")
    assert (code, out.count(told)) == (0, 2)  # with the empty answer and with the solution
    assert told not in check("is_on", "--tasks", "1")[1]


def test_an_empty_answer_with_full_marks_is_a_fault(
    check: Callable[..., tuple[int, str, str]],
) -> None:
    code, _, err = check("is_not_broken")
    assert code == 5
    assert "data.train: task 't0': the empty answer gets full marks, 1 of 1" in err
    assert "task 't4'" in err


def test_a_reference_solution_without_full_marks_is_a_fault(
    check: Callable[..., tuple[int, str, str]],
) -> None:
    code, _, err = check("never", "--tasks", "1")
    assert code == 5
    assert (
        "task 't0': the reference solution gets 0 of 1 (terminated); correct the solution"
        in err
    )


@pytest.mark.parametrize(
    ("reward", "fault"),
    [
        ("trusting", "[forged] the hostile answer 'a score' gets 1; pay only"),
        ("reading", "[excluded] the hostile answer 'an expression of many digits' fails"),
    ],
)
def test_a_hostile_answer_that_is_paid_or_fails_the_episode_is_a_fault(
    check: Callable[..., tuple[int, str, str]], reward: str, fault: str
) -> None:
    code, out, err = check(reward, "--tasks", "1")
    assert code == 5
    assert "reward: hostile answers to task 't0' of data.train" in out
    assert f"data.train: task 't0': {fault}" in err


def test_what_calls_cost_is_held_against_no_solution(
    check: Callable[..., tuple[int, str, str]],
) -> None:
    costs = "reward.functions=[task.py:is_on, {function: tool_cost, weight: 0.1}]"
    code, out, err = check("is_on", costs, "--tasks", "1")
    assert (code, err) == (0, "")
    assert "the empty answer is scored 0 of 1 (is_on 0, tool_cost -1)" in out
    assert "the reference solution is scored 1 of 1 (is_on 1, tool_cost -1)" in out
    assert check("is_on", costs, "reward.full_marks=1")[0] == 5  # now it is


def test_full_marks_can_be_said(check: Callable[..., tuple[int, str, str]]) -> None:
    assert check("is_not_broken", "reward.full_marks=0.5")[0] == 5
    # now the solution lacks marks
    assert check("is_not_broken", "reward.full_marks=2")[0] == 5
    assert check("is_on", "reward.full_marks=1")[0] == 0


def test_an_environment_gives_its_own_solution(agentrl: Agentrl) -> None:
    """The maze's shortest way out, rendered with the tokenizer that ``model.build`` makes."""
    code, out, err = agentrl("check", EXAMPLES / "maze" / "config.yaml", "--tasks", "1")
    assert (code, err) == (0, "")
    assert out.count("the reference solution is scored 1 of 1 (step 1)") == 2
    assert "prompts of data.train: made by the environment" in out
    assert "demonstrations: 100 measured, tokens: min " in out
    shown = out[out.index("task 'train-0' with the reference solution") :]
    assert "   policy | " in shown
    # trained with its end
    assert "<|im_end|>" in shown.split("   policy | ")[1].splitlines()[0]


def test_a_resource_is_opened_and_asked(
    check: Callable[..., tuple[int, str, str]], tmp_path: Path, agentrl: Agentrl
) -> None:
    check("is_on")
    (tmp_path / "there").write_text("abc")
    override = "env.tools=[task.py:Lamp, task.py:read]"
    for name, code in (("there", 0), ("missing", 4)):
        base = f"{{function: task.py:Base, args: {{path: {tmp_path / name}}}}}"
        opens = f"env.resources={{db: {base}}}"
        found, out, err = agentrl("check", tmp_path / "config.yaml", override, opens)
        assert found == code, err
        told = "resource db: a Base is open, 3 characters ("
        assert (told in out) == (code == 0)
        assert ("resource 'db' does not answer: FileNotFoundError" in err) == (code == 4)


@pytest.mark.slow
def test_a_server_that_does_not_start_is_named(
    check: Callable[..., tuple[int, str, str]], tmp_path: Path, agentrl: Agentrl
) -> None:
    check("is_on")
    server = Path(__file__).parents[1] / "tools" / "mcp_server.py"
    for program, code in ((server, 0), ("none.py", 4)):
        command = f"[{sys.executable}, {program}, {tmp_path / 'log'}]"
        mcp = f"env.mcp={{own: {{command: {command}, tools: [echo]}}}}"
        found, out, err = agentrl("check", tmp_path / "config.yaml", mcp, "--tasks", "1")
        assert found == code, err
        assert ("mcp 'own' does not answer" in err) == (code == 4)
        assert ("mcp own: tools: echo (" in out) == (code == 0)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (7, "must be a text or a list of the assistant's turns"),
        ([], "must be a text or a list"),
        (
            [{"role": "user", "content": "?"}],
            "turn 0 must be a text, or an assistant's message",
        ),
        ([{"tool_calls": [{"arguments": {}}]}], "must be a function call with a name"),
        ([{"tool_calls": [{"name": "f", "arguments": "{"}]}], "must be JSON text"),
    ],
)
def test_what_is_no_solution_is_named(given: object, told: str) -> None:
    with pytest.raises(DataError, match="the solution of task 't'") as raised:
        solution_of(Task("t", info={"solution": given}))
    assert told in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "code"), [(19, 5), (20, 0)])
def test_a_limit_that_leaves_no_task_is_a_fault(
    agentrl: Agentrl, limit: int, code: int
) -> None:
    example = EXAMPLES / "code" / "config.yaml"
    found, out, err = agentrl(
        "check", example, f"data.max_prompt_tokens={limit}", "--tasks", "1"
    )
    assert found == code, out + err
    told = "leaves out every task of data.train: of 4000 prompts the shortest has 20 tokens"
    assert (told in err) == bool(code)
