"""A user's code that exits ends no verb half-way: exit code 3, and the line that exited."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.types import load_object
from tests.kit.waiting import DEADLINE_S

Agentrl = Callable[..., tuple[int, str, str]]

CODE = """
import sys
from agentrl.envs import Env, ToolEnv, turn_rewards
from agentrl.tools import tool
from agentrl.types import Observation, StepResult, Task


@tool
def look(word: str) -> str:
    "Looks a word up."
    return word


@tool
class Made:
    def __init__(self):
        sys.exit(0)  # made

    @tool
    def look(self) -> str:
        "Looks."
        return ""


@tool
class SetUp:
    def setup(self):
        sys.exit(0)  # set_up

    @tool
    def look(self) -> str:
        "Looks."
        return ""


class Leaves(ToolEnv):
    async def step(self, action):
        sys.exit(0)  # step


class LeavesAtOnce(ToolEnv):
    def __init__(self, task, **settings):
        sys.exit(0)  # init


class LeavesLate(ToolEnv):
    async def close(self):
        sys.exit(0)  # close


def tasks():
    yield Task("t-0", ({"role": "user", "content": "What?"},), answer="this")


def leaving_tasks():
    yield Task("t-0", ({"role": "user", "content": "What?"},))
    sys.exit(0)  # tasks


def right(episode):
    return float(episode.final_text == "this")


def plain(episode):
    sys.exit(0)  # plain


async def later(episode):
    raise KeyboardInterrupt  # later


@turn_rewards
def turns(episode):
    sys.exit(0)  # turns


def sampler(tasks, seed):
    sys.exit(0)  # sampler


def opened():
    sys.exit(0)  # opened
"""
LINE = {
    name: number
    for number, text in enumerate(CODE.splitlines(), 1)
    for name in re.findall(r"# (\w+)$", text)
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "task.py").write_text(CODE)
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    config = tmp_path / "config.yaml"
    config.write_text(
        "model: {path: some/model}\ndata: task.py:tasks\nenv: {tools: [task.py:look]}\n"
        "reward: {functions: [task.py:right]}\n"
    )
    return config


WHERE = [
    ("reward.functions=[task.py:plain]", "plain"),
    ("reward.functions=[task.py:later]", "later"),
    ("reward.functions=[task.py:turns]", "turns"),
    ("env.entry_point=task.py:LeavesAtOnce", "init"),
    ("env.entry_point=task.py:Leaves", "step"),
    ("env.entry_point=task.py:LeavesLate", "close"),
    ("env.tools=[task.py:Made]", "made"),
    ("env.tools=[task.py:SetUp]", "set_up"),
    ("env.resources={db: task.py:opened}", "opened"),
    ("data=task.py:leaving_tasks", "tasks"),
    ("data.sampler=task.py:sampler", "sampler"),
]


@pytest.mark.parametrize(("override", "where"), WHERE, ids=[where for _, where in WHERE])
def test_check_says_which_line_exited(
    agentrl: Agentrl, project: Path, override: str, where: str
) -> None:
    code, _, err = agentrl("check", project, override)
    assert code == 3, err
    assert f"task.py:{LINE[where]}" in err
    assert re.search("SystemExit|KeyboardInterrupt", err)
    # a warning may come before it, such as of what a dead process left
    assert [line for line in err.splitlines() if not line.startswith("! ")] == [
        err.splitlines()[-1]
    ]


def test_check_says_which_file_exits_when_imported(agentrl: Agentrl, project: Path) -> None:
    code, _, err = agentrl("check", project, "reward.functions=[leaves.py:f]")
    assert (code, "leaves.py:2" in err) == (3, True), err


@pytest.mark.parametrize(
    ("tool", "where"), [("task.py:Made", "made"), ("task.py:SetUp", "set_up")]
)
def test_try_says_which_line_exited(
    agentrl: Agentrl, project: Path, tool: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.parent)
    code, _, err = agentrl("try", tool, "{}")
    assert (code, f"task.py:{LINE[where]}" in err) == (3, True), err


MODEL_TASK = Path(__file__).resolve().parents[1] / "run" / "tiny_task.py"
REWARD = """
import sys
from pathlib import Path

from agentrl.envs import ToolEnv


class Leaving(ToolEnv):
    async def reset(self, *, seed):
        sys.exit(0)


def leaving(episode):
    if Path(__file__).with_name("leave").exists():
        sys.exit(0)
    return 1.0
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration with a model that plays, and a reward that exits once ``leave`` exists."""
    folder = tmp_path_factory.mktemp("leaving")
    (folder / "model").mkdir()
    load_object(f"{MODEL_TASK.name}:build_model", MODEL_TASK.parent)(
        folder / "model", seed=0
    )
    (folder / "own.py").write_text(REWARD)
    config = folder / "config.yaml"
    config.write_text(
        f"""\
placement: {{mode: inline}}
model: {{path: model}}
env: {{tools: ["{MODEL_TASK}:add"], describe_tools_in_prompt: false}}
data: {{train: "{MODEL_TASK}:tasks", max_prompt_tokens: 64}}
reward: {{functions: [own.py:leaving]}}
rollout: {{group_size: 2, max_turns: 1, max_turn_tokens: 4, max_response_tokens: 40}}
train: {{steps: 1, batch_prompts: 1}}
eval: {{sets: {{sums: {{data: "{MODEL_TASK}:tasks", num_tasks: 1}}}}}}
"""
    )
    return config


@pytest.mark.slow
def test_verbs_that_play_say_which_line_exited(
    agentrl: Agentrl, tiny: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert agentrl("rollout", tiny, "--tasks", "1", "--out", out)[0] == 0
    (tiny.parent / "leave").touch()
    lines = {"first try": 10}
    other = ["train", tiny, f"run.dir={tmp_path / 'tried'}", "eval.sets={}"]
    model = tiny.parent / "model"
    played = {
        "rollout": agentrl("rollout", tiny, "--tasks", "1", "--out", tmp_path / "other"),
        "eval": agentrl("eval", model, tiny, "--samples", "2"),
        "train": agentrl("train", tiny, f"run.dir={tmp_path / 'run'}", "eval.sets={}"),
        "replay": agentrl("replay", out, "--trust"),
        "first try": agentrl(*other, "env.entry_point=own.py:Leaving"),
    }
    for verb, (code, printed, err) in played.items():
        assert code == 3, (verb, err)
        line = f"{tiny.parent / 'own.py'}:{lines.get(verb, 15)}"
        assert line in printed + err, (verb, printed, err)
        assert "SystemExit: 0" in printed + err


@pytest.mark.slow
def test_play_says_which_line_exited(project: Path) -> None:
    command = [sys.executable, "-m", "agentrl", "play", str(project)]
    done = subprocess.run(
        [*command, "reward.functions=[task.py:plain]"],
        input="this\n",
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert f"task.py:{LINE['plain']}" in done.stdout
