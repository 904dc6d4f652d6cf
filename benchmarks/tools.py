"""Tools: what the path around a tool costs, and whether the event loop stands still.

``python -m benchmarks.tools`` keeps 256 episodes in flight. Each calls a tool that does nothing,
with plain and with nested arguments. Beside them runs a watcher that asks every millisecond for its
turn of the loop, also while other episodes make hostile calls: slow constructors, schemas whose
patterns backtrack, long outputs, generators without an end, and large arguments.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from agentrl.envs import EnvSpec, ToolEnv, build_env
from agentrl.tools import Tool, ToolExecutor, tool
from agentrl.types import Action, CallRecord, Task, ToolCall
from benchmarks.figures import Figures, add_arguments

EPISODES = 256
CALLS = 40
LIMIT_MS = 0.3
STILL_MS = 50.0
TASK = Task("t", ({"role": "user", "content": "hi"},))
NESTED = {
    "order": {
        "lines": [{"item": f"tea {n}", "count": n, "tags": ["a", "b"]} for n in range(8)]
    },
    "notes": {"who": "me", "when": "now"},
}
LINE = {
    "type": "object",
    "properties": {
        "item": {"type": "string"},
        "count": {"type": "integer", "minimum": 0},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
    },
    "required": ["item", "count"],
    "additionalProperties": False,
}
ORDER = {
    "type": "object",
    "properties": {
        "order": {
            "type": "object",
            "properties": {"lines": {"type": "array", "items": LINE}},
        },
        "notes": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["order"],
}

NOTE = (
    "A call goes through ToolEnv.step: arguments are checked, the tool is run, its answer made a "
    "message. Its time is the processor's, of all threads, with all episodes in flight in one "
    "loop. Eight hostile calls of a kind run at once."
)


@tool
async def ping(a: int, b: str = "x") -> str:
    """Do nothing."""
    return "ok"


@tool
def ping_thread(a: int) -> str:
    """Do nothing, in a thread."""
    return "ok"


@tool(max_concurrent=64, max_calls=10_000)
async def ping_limited(a: int) -> str:
    """Do nothing, within limits."""
    return "ok"


async def _nothing(**given: Any) -> str:
    return "ok"


nested = Tool.from_schema({"name": "nested", "parameters": ORDER}, _nothing)


class Stillness:
    """The longest time for which the loop let nobody else run: of the processor's seconds of this
    process and the wall's, the fewer, since other processes of the machine stop it too.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def __aenter__(self) -> Stillness:
        self._watching = asyncio.create_task(self._watch())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watching.cancel()

    async def _watch(self) -> None:
        pause_s = 0.001
        while True:
            start, worked = time.perf_counter(), time.process_time()
            await asyncio.sleep(pause_s)
            wall_s = time.perf_counter() - start - pause_s
            self.longest_s = max(self.longest_s, min(wall_s, time.process_time() - worked))


async def per_call_ms(
    made: Tool, arguments: Mapping[str, Any], calls: int
) -> tuple[float, float]:
    """Milliseconds a call, of the processor and of the wall."""
    call = ToolCall("call_0", made.spec.name, arguments)
    message = {"role": "assistant", "content": "", "tool_calls": [call.openai()]}
    action = Action("", message, (call,))  # type: ignore[arg-type]
    envs = [ToolEnv(TASK, tools=[made]) for _ in range(EPISODES)]
    for env in envs:
        await env.reset(seed=0)

    async def episode(env: ToolEnv) -> None:
        for _ in range(calls):
            result = await env.step(action)
            assert result.observation.messages[0]["content"] == "ok"

    await asyncio.gather(*map(episode, envs))  # warm
    start, worked = time.perf_counter(), time.process_time()
    await asyncio.gather(*map(episode, envs))
    work_s, wall_s = time.process_time() - worked, time.perf_counter() - start
    each = 1000 / (EPISODES * calls)
    return work_s * each, wall_s * each


def slow_factory(task: Task) -> Any:
    """A constructor that takes its time."""
    time.sleep(0.3)
    return ping


@tool
async def endless() -> AsyncIterator[str]:
    """Give output without an end."""
    while True:
        yield "y" * 512


@tool
def long_output() -> str:
    """Give a megabyte."""
    return "long output " * 90_000


@tool
def echo(text: str) -> str:
    """Give it back."""
    return text


hostile_pattern = Tool.from_schema(
    {
        "name": "hostile_pattern",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string", "pattern": "^(a+)+$"}},
        },
    },
    _nothing,
)


async def _run(made: Tool, **arguments: Any) -> Sequence[CallRecord]:
    return await ToolExecutor([made]).run([ToolCall("call_0", made.spec.name, arguments)])


async def _made_slowly() -> None:
    from agentrl.tools import ToolFactory

    spec = EnvSpec(ToolEnv, {"tools": [ToolFactory(slow_factory)]})
    await (await build_env(lambda: spec.build(TASK))).close()  # type: ignore[misc]


HOSTILE: Mapping[str, Callable[[], Awaitable[object]]] = {
    "slow constructors": _made_slowly,
    "patterns that backtrack": lambda: _run(hostile_pattern, text="a" * 64 + "!"),
    "generators without an end": lambda: _run(endless),
    "outputs of a megabyte": lambda: _run(long_output),
    "arguments of 128 kB": lambda: _run(echo, text="<tool_call>{" * 10_900),
    "nested arguments of 128 kB": lambda: _run(
        nested, order={"lines": [{"item": "x", "count": -1}] * 4000}
    ),
}


async def measure(figures: Figures, calls: int) -> None:
    """The path's cost, then the loop under each kind of hostile call."""
    cases: list[tuple[str, Tool, Mapping[str, Any]]] = [
        ("plain arguments", ping, {"a": 1, "b": "two"}),
        ("nested arguments", nested, NESTED),
        ("places and calls limited", ping_limited, {"a": 1}),
        ("a synchronous tool, in a thread", ping_thread, {"a": 1}),
    ]
    for name, made, arguments in cases:
        work_ms, wall_ms = await per_call_ms(made, arguments, calls)
        figures.at_most(f"tool path, {name}", work_ms, "ms a call", LIMIT_MS)
        figures.report(f"tool path, {name}: by the wall", wall_ms, "ms a call")
    for name, hostile in HOSTILE.items():
        async with Stillness() as still:
            await asyncio.gather(*(hostile() for _ in range(8)))
        figures.at_most(
            f"longest standstill, {name}", 1000 * still.longest_s, "ms", STILL_MS
        )
    figures.report("episodes in flight", EPISODES, "")
    figures.note(NOTE)


def main(arguments: list[str] | None = None) -> int:
    """All of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser, benchmark="tools")
    parser.add_argument("--calls", type=int, default=CALLS, help="of each episode")
    parsed = parser.parse_args(arguments)
    figures = Figures()
    asyncio.run(measure(figures, parsed.calls))
    return figures.finish(parsed, seeds=[])


if __name__ == "__main__":
    sys.exit(main())
