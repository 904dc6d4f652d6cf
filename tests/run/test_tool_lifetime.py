"""Tools named by ``env.tools``: what is made for each episode, what is shared, and who closes
it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.load import load_config
from agentrl.controller.cluster.ray_runtime import _RolloutWorker
from agentrl.envs import Env, ToolEnv
from agentrl.errors import AgentRLError, ConfigError, DataError, ToolError
from agentrl.run.build import LiveObjects, env_spec
from agentrl.tools import Tool, ToolContext, ToolFactory, close_shared_tools, share
from agentrl.types import Action, Task, ToolCall, ToolSpec
from tests.run.tiny_run import train

Write = Callable[..., Path]
TASK = Task("1", ({"role": "user", "content": "Count."},))

MODULE = """
from collections.abc import Mapping
from typing import Any

from agentrl.tools import Tool, ToolContext, ToolFactory, tool
from agentrl.types import ToolSpec

LOG = []


@tool
class Counter:
    "Counts."

    def __init__(self, start: int = 0) -> None:
        self.value = start
        LOG.append("made")

    def __call__(self, by: int) -> int:
        "Counts on."
        self.value += by
        return self.value

    def close(self) -> None:
        LOG.append("closed")


class Plain(Tool):
    "A class of tools without @tool."

    def __init__(self, start: int = 0) -> None:
        self.spec = ToolSpec("plain", "", {"type": "object", "properties": {"by": {"type": "integer"}}})
        self.value = start

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> str:
        self.value += arguments["by"]
        return str(self.value)

    async def close(self) -> None:
        LOG.append("closed")


def make_counters(start: int) -> list[Tool]:
    return [tool(Counting(start).count)]


class Counting:
    def __init__(self, start: int) -> None:
        self.value = start

    def count(self, by: int) -> int:
        self.value += by
        return self.value


shared = Plain(100)
factory = ToolFactory(make_counters, {"start": 7})


def forgotten(by: int) -> int:
    return by
"""  # noqa: E501


@pytest.fixture
def make(write: Write, tmp_path: Path) -> Callable[..., ToolEnv]:
    """An environment, as an episode's host makes one."""
    (tmp_path / "own.py").write_text(MODULE)

    def build(tools: str, **more: Any) -> ToolEnv:
        (stage,) = load_config(write(f"env: {{tools: [{tools}]}}")).resolved_stages()
        env: Env = env_spec(stage, LiveObjects()).build(TASK, **more)
        assert isinstance(env, ToolEnv)
        return env

    return build


def log(tmp_path: Path) -> list[str]:
    from agentrl.types import load_object

    found: list[str] = load_object("own.py:LOG", tmp_path)
    return found


async def count(env: ToolEnv, name: str, by: int) -> str:
    call = ToolCall("call_0", name, {"by": by})
    said: Any = {"role": "assistant", "content": "", "tool_calls": [call.openai()]}
    result = await env.step(Action("", said, (call,)))
    return str(result.observation.messages[0]["content"])


@pytest.mark.parametrize(
    ("tools", "name", "start"),
    [
        ("{function: 'own.py:Counter', args: {start: 5}}", "counter", 5),
        ("'own.py:Counter'", "counter", 0),
        ("{function: 'own.py:Plain', args: {start: 5}}", "plain", 5),
        ("'own.py:Plain'", "plain", 0),
        ("{function: 'own.py:make_counters', args: {start: 5}}", "count", 5),
        ("'own.py:factory'", "count", 7),
        ("{function: 'own.py:factory', args: {start: 5}}", "count", 5),
    ],
)
async def test_each_episode_has_its_own_of_a_class_or_factory(
    make: Callable[..., ToolEnv], tools: str, name: str, start: int
) -> None:
    one, other = make(tools), make(tools)
    assert await count(one, name, 1) == str(start + 1)
    assert await count(one, name, 1) == str(start + 2)
    assert await count(other, name, 1) == str(start + 1)
    await one.close()
    assert await count(other, name, 1) == str(start + 2)
    await other.close()


async def test_an_object_is_shared_and_closed_with_the_process(
    make: Callable[..., ToolEnv], tmp_path: Path
) -> None:
    one, other = make("'own.py:shared'"), make("'own.py:shared'")
    assert await count(one, "plain", 1) == "101"
    await one.close()
    assert await count(other, "plain", 1) == "102"
    await other.close()
    assert log(tmp_path) == []
    close_shared_tools()
    assert log(tmp_path) == ["closed"]
    close_shared_tools()
    assert log(tmp_path) == ["closed"]


def test_the_end_of_a_process_closes_what_was_shared(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        MODULE.replace('LOG.append("closed")', 'print("closed", flush=True)')
    )
    program = (
        "from agentrl.envs import ToolEnv\nfrom agentrl.types import Task\n"
        "ToolEnv(Task('1', ({'role': 'user', 'content': 'x'},)), "
        "tools=['own.py:shared'])\nprint('ends', flush=True)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.stdout.split(), ended.stderr) == (["ends", "closed"], "")


def test_a_rollout_worker_closes_what_was_shared_at_its_end_and_not_between_stages() -> (
    None
):
    class Kept(Tool):
        spec = ToolSpec("kept", "", {"type": "object"})
        closed = 0

        async def call(self, arguments: Any, context: ToolContext) -> str:
            return ""

        async def close(self) -> None:
            self.closed += 1

    kept, worker = Kept(), _RolloutWorker(0, None)
    share(kept)
    worker.setup_rollouts(None)
    assert kept.closed == 0
    worker.close()
    assert kept.closed == 1


async def test_what_is_made_to_look_at_it_is_closed(
    make: Callable[..., ToolEnv], tmp_path: Path
) -> None:
    env = make("'own.py:Counter'")
    await env.close()
    # one by env_spec, one by the episode
    assert sorted(log(tmp_path)) == [
        "closed",
        "closed",
        "made",
        "made",
    ]


def test_an_environment_that_cannot_be_made_closes_the_tools_that_it_made(
    tmp_path: Path,
) -> None:
    (tmp_path / "own.py").write_text(MODULE)
    with pytest.raises(ToolError, match="more than once"):
        ToolEnv(TASK, tools=["own.py:Counter", "own.py:Counter"], base_dir=tmp_path)
    assert log(tmp_path) == ["made", "made", "closed", "closed"]


@pytest.mark.parametrize(
    ("tools", "told"),
    [
        (
            "{function: 'own.py:Counter', args: {strat: 5}}",
            r"Counter .*own\.py:11.*'strat'; its arguments are: start",
        ),
        (
            "{function: 'own.py:shared', args: {start: 5}}",
            r"own\.py:shared is one object .* takes no args",
        ),
        (
            "{function: 'own.py:forgotten', args: {by: 5}}",
            r"forgotten .*own\.py:\d+\) must make tools, got 5; .*@tool",
        ),
        (
            "'own.py:forgotten'",
            r"own\.py:forgotten \(.*own\.py:60\) is no tool but a function; decorate it with @tool",
        ),
        (
            "'own.py:Counting'",
            r"own\.py:Counting \(.*own\.py:47\) is no tool but a class; decorate it with @tool",
        ),
        (
            "pyhton",
            r"='pyhton' is unknown; did you mean 'python'\?; choose one of calculator, ",
        ),
        (
            "{function: python, args: {timeout: 1}}",
            r"'python' .*'timeout'; its arguments are: .*deadline_s",
        ),
    ],
)
def test_what_is_wrong_with_a_tool_is_told(
    make: Callable[..., ToolEnv], tools: str, told: str
) -> None:
    with pytest.raises(AgentRLError, match=told) as caught:
        make(tools)
    assert caught.value.exit_code == 2  # a sentence on the command line, and no traceback


def test_the_built_in_python(make: Callable[..., ToolEnv]) -> None:
    env = make("python")
    assert [spec.name for spec in env._executor.specs] == ["python"]
    other = make("{function: python, deadline_s: 2, args: {name: run}}")
    assert [spec.name for spec in other._executor.specs] == ["run"]


async def test_the_built_in_search(make: Callable[..., ToolEnv], tmp_path: Path) -> None:
    (tmp_path / "words.jsonl").write_text(
        '{"title": "Ada", "text": "Her mother is Eve."}\n\n{"text": "Eve is old."}\n'
    )
    env = make("{function: search, args: {documents: words.jsonl, top_k: 1}}")
    call = ToolCall("call_0", "search", {"query": "mother"})
    said: Any = {"role": "assistant", "content": "", "tool_calls": [call.openai()]}
    result = await env.step(Action("", said, (call,)))
    assert result.observation.messages[0]["content"] == "Ada: Her mother is Eve."


@pytest.mark.parametrize(
    ("lines", "error", "told"),
    [
        (None, DataError, "words.jsonl' does not exist"),
        ('{"title": "a"}\n', DataError, r"words\.jsonl:1 must be an object with a 'text'"),
        ("\n{\n", DataError, r"words\.jsonl:2 is not JSON"),
    ],
)
def test_documents_that_cannot_be_read(
    make: Callable[..., ToolEnv],
    tmp_path: Path,
    lines: str | None,
    error: type[Exception],
    told: str,
) -> None:
    if lines is not None:
        (tmp_path / "words.jsonl").write_text(lines)
    with pytest.raises(error, match=told):
        make("{function: search, args: {documents: words.jsonl}}")


def test_a_search_without_documents_says_what_it_needs(
    make: Callable[..., ToolEnv],
) -> None:
    with pytest.raises(ConfigError, match=r"search takes either documents.* or the url"):
        make("search")


def test_a_factory_with_arguments_travels(tmp_path: Path) -> None:
    import pickle

    (tmp_path / "own.py").write_text(MODULE)
    from agentrl.types import load_object

    counter: ToolFactory = load_object("own.py:Counter", tmp_path)
    copy = pickle.loads(pickle.dumps(counter.with_args({"start": 3})))
    assert (copy.make, copy.args) == (counter.make, {"start": 3})


HINTS = [
    "by",
    "by: unknown",
    "by: 'int or'",
    "by: math.flaot",
    "by: 3",
    "by: object()",
    "by: Callable",
    "*by: int",
]


@pytest.mark.parametrize("hint", HINTS)
def test_a_wrong_hint_is_a_sentence_with_the_users_line(
    make: Callable[..., ToolEnv], tmp_path: Path, hint: str
) -> None:
    text = (
        "from __future__ import annotations\nimport math\nfrom collections.abc import Callable\n"
        f"from agentrl.tools import tool\n\n\n@tool\ndef wrong({hint}) -> int:\n    return 1\n"
    )
    (tmp_path / "hints.py").write_text(text)
    with pytest.raises(ConfigError, match=r"hints\.py:[78]: tool 'wrong': ") as caught:
        make("'hints.py:wrong'")
    assert "agentrl/tools" not in str(caught.value)


@pytest.mark.slow
def test_a_ray_worker_makes_tools_for_each_episode_and_closes_shared_ones_once(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    (tmp_path / "own.py").write_text(
        MODULE.replace(
            "LOG = []",
            f"def note(word):\n    with open({str(log)!r}, 'a') as f:\n        f.write(word)\n",
        )
        .replace('LOG.append("made")', 'note("m")')
        .replace('LOG.append("closed")', 'note("s" if isinstance(self, Tool) else "c")')
    )
    tools = "env.tools=[{function: 'own.py:Counter', args: {start: 5}}, 'own.py:shared']"
    short = [
        "stages.warmup.steps=1",
        "train.steps=1",
        "stages.rl.eval={}",
        "run.deterministic=false",
    ]
    train(tmp_path, "placement.mode=ray", tools, *short)
    words = log.read_text()
    # 12 episodes, and one look before the run
    assert words.count("m") == words.count("c") >= 13
    assert words.count("s") == 1
    assert words.endswith("s")
