"""The calls of one turn: order, errors as text, deadlines, limits, and what is ours."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from agentrl.errors import SandboxError, ToolError
from agentrl.tools import TOOL_THREADS, Tool, ToolContext, ToolExecutor, ToolOutput, tool
from agentrl.tools.parsers import HermesParser, read_completion
from agentrl.types import CallProblem, ToolCall, ToolResult, ToolSpec
from tests.kit.waiting import DEADLINE_S


def calls(*wanted: tuple[str, Mapping[str, Any]]) -> list[ToolCall]:
    return [
        ToolCall(f"call_{index}", name, arguments)
        for index, (name, arguments) in enumerate(wanted)
    ]


async def results(
    executor: ToolExecutor, *wanted: tuple[str, Mapping[str, Any]]
) -> list[ToolResult]:
    return [
        record.result
        for record in await executor.run(calls(*wanted))
        if record.result is not None
    ]


async def only(executor: ToolExecutor, name: str, **arguments: Any) -> ToolResult:
    (result,) = await results(executor, (name, arguments))
    return result


@tool
def add(a: int, b: int = 3) -> int:
    """Add."""
    return a + b


@tool
def fail(how: str) -> str:
    """Fail."""
    if how == "exit":
        sys.exit(3)
    if how == "stop":
        raise StopIteration
    raise ValueError(how)


async def test_a_call_gives_its_result() -> None:
    result = await only(ToolExecutor([add]), "add", a=1)

    assert (result.content, result.error, result.name, result.call_id) == (
        "4",
        None,
        "add",
        "call_0",
    )


async def test_calls_and_problems_come_back_in_the_order_written() -> None:
    problem = CallProblem("call_1", "malformed_json", "the call is no valid JSON", "{")
    made = [
        ToolCall("call_10", "add", {"a": 10}),
        ToolCall("call_2", "add", {"a": 2}),
        ToolCall("call_0", "no", {}),
    ]
    records = await ToolExecutor([add]).run(made, [problem])

    assert [r.result.call_id for r in records if r.result] == [
        "call_0",
        "call_1",
        "call_2",
        "call_10",
    ]


async def test_ids_of_another_form_keep_their_order() -> None:
    made = [ToolCall(name, "add", {"a": 1}) for name in ("b", "a")]

    assert [r.call.id for r in await ToolExecutor([add]).run(made) if r.call] == ["b", "a"]


async def test_a_problem_is_answered_with_its_mend() -> None:
    problem = CallProblem("call_0", "unclosed", "end it with </tool_call>", "<tool_call>{")
    (record,) = await ToolExecutor([add]).run([], [problem])

    assert record.problem is problem
    assert record.result == ToolResult(
        "call_0", "", "Error: end it with </tool_call>", error="malformed"
    )


async def test_calls_of_a_turn_run_at_once() -> None:
    barrier = threading.Barrier(3)

    @tool
    def meet() -> str:
        barrier.wait(DEADLINE_S)  # passes only where all three are inside
        return "met"

    assert [
        r.content for r in await results(ToolExecutor([meet]), *[("meet", {})] * 3)
    ] == ["met"] * 3


async def test_an_unknown_tool_is_told_what_there_is() -> None:
    result = await only(ToolExecutor([add, fail]), "ad")

    assert result.error == "unknown_tool"
    assert (
        result.content
        == "Error: there is no tool 'ad'. Did you mean 'add'? The tools are: add, fail."
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"a": "x"}, "argument 'a' must be of type integer, got \"x\""),
        ({}, "argument 'a' is missing"),
        ({"a": 1, "bb": 2}, "there is no argument \"bb\"; did you mean 'b'?"),
        ({"a": True}, "argument 'a' must be of type integer, got true"),
        ({"a": "12"}, "argument 'a' must be of type integer, got \"12\""),
        ({"a": '{"a": 1}'}, 'argument \'a\' must be of type integer, got "{\\"a\\": 1}"'),
    ],
)
async def test_invalid_arguments_are_told_what_to_mend(
    arguments: dict[str, Any], told: str
) -> None:
    result = await only(ToolExecutor([add]), "add", **arguments)

    assert (result.error, result.content) == (
        "invalid_arguments",
        f"Error: {told}. Correct the arguments of add and call again.",
    )


async def test_rules_within_a_value_name_their_place() -> None:
    item = {"type": "object", "properties": {"n": {"maximum": 5}}, "required": ["n"]}
    parameters = {
        "type": "object",
        "properties": {"items": {"type": "array", "items": item}},
    }
    made = Tool.from_schema({"name": "pick", "parameters": parameters}, lambda items=(): "")

    content = (await only(ToolExecutor([made]), "pick", items=[{"n": 9}, {}])).content

    assert "argument 'items[0].n' breaks the rule maximum 5, got 9" in content
    assert "in argument 'items[1]': argument 'n' is missing" in content


async def test_a_huge_value_is_not_repeated_to_the_model() -> None:
    assert len((await only(ToolExecutor([add]), "add", a="x" * 100_000)).content) < 300


async def test_ten_megabytes_of_arguments_are_read_checked_and_given() -> None:
    @tool
    def size(text: str) -> str:
        """Count."""
        return str(len(text))

    calls = [
        {"name": "size", "arguments": {"text": "x" * 10_000_000}},
        {"name": "add", "arguments": {"a": "9" * 10_000_000}},
    ]
    text = "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)
    parsed = await read_completion(HermesParser(), text)
    given, refused = await ToolExecutor([add, size]).run(parsed.tool_calls)
    assert given.result is not None
    assert given.result.content == "10000000"
    assert refused.result is not None
    assert refused.result.error == "invalid_arguments"
    assert len(refused.result.content) < 300


async def test_a_tool_that_raises_tells_the_model() -> None:
    result = await only(ToolExecutor([fail]), "fail", how="so")

    assert (result.error, result.content) == (
        "exception",
        "Error: fail raised ValueError: so",
    )


@pytest.mark.parametrize("how", ["exit", "stop"])
async def test_a_tool_cannot_end_the_process_or_the_loop(how: str) -> None:
    assert (await only(ToolExecutor([fail]), "fail", how=how)).error == "exception"


@tool
def give(what: str) -> object:
    """Give something."""
    given = {
        "array": np.arange(3),
        "scalar": np.float32(1.5),
        "view": {"a": 1}.values(),
        "object": object(),
        "digits": 10**5000,
        "reward": ToolOutput("x", reward=np.float32(0.5)),
        "huge": ToolOutput("x", reward=10**400),
    }
    return given[what]


@pytest.mark.parametrize(
    ("what", "text"), [("array", "[0, 1, 2]"), ("scalar", "1.5"), ("view", "[1]")]
)
async def test_what_a_tool_gives_becomes_numbers_and_lists(what: str, text: str) -> None:
    result = await only(ToolExecutor([give]), "give", what=what)
    assert (result.error, result.content) == (None, text)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (
            "object",
            r"tool 'give' must give text, a ToolOutput or what becomes JSON, got object \(object "
            r"is no JSON\); .* \(.*test_executor\.py:\d+\)",
        ),
        ("huge", r"tool 'give': ToolOutput\.reward must be a finite number, got 1000"),
    ],
)
async def test_what_a_tool_must_not_give_is_told_to_its_author(
    what: str, told: str
) -> None:
    with pytest.raises(ToolError, match=told) as caught:
        await only(ToolExecutor([give]), "give", what=what)
    assert not caught.value.retryable


async def test_what_the_call_made_too_large_is_told_to_the_model() -> None:
    result = await only(ToolExecutor([give]), "give", what="digits")
    assert result.error == "exception"
    assert "Exceeds the limit" in result.content


async def test_numpys_numbers_are_rewards() -> None:
    assert (await only(ToolExecutor([give]), "give", what="reward")).reward == 0.5


async def test_a_failure_of_ours_is_raised_and_ends_the_other_calls() -> None:
    ended = asyncio.Event()

    @tool
    async def wait() -> str:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()
        return ""

    @tool
    async def lose() -> str:
        raise SandboxError("the host is gone")

    with pytest.raises(SandboxError, match="the host is gone"):
        await results(ToolExecutor([wait, lose]), ("wait", {}), ("lose", {}))
    assert ended.is_set()


async def test_an_async_tool_that_hangs_is_cancelled() -> None:
    ended = asyncio.Event()

    @tool(deadline_s=0.05)
    async def hang() -> str:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()
        return ""

    executor = ToolExecutor([hang])
    result = await only(executor, "hang")

    assert (result.error, result.content) == (
        "timeout",
        "Error: hang took longer than 0.05 s and was ended.",
    )
    assert ended.is_set()
    assert executor.num_abandoned == 0


READ_IN: list[str] = []


def squares(number: int) -> Iterator[int]:
    for n in range(number):
        READ_IN.append(threading.current_thread().name)
        yield n * n


@tool
def of_generator(number: int) -> Iterator[int]:
    """Squares."""
    yield from squares(number)


@tool
def of_map(number: int) -> Iterable[int]:
    """Squares."""
    return map(int, squares(number))


@tool
async def of_coroutine(number: int) -> Iterable[int]:
    """Squares."""
    return squares(number)


@tool
async def in_pieces(number: int) -> AsyncIterator[Any]:
    """Squares."""
    yield squares(number)


@pytest.mark.parametrize("made", [of_generator, of_map, of_coroutine, in_pieces])
async def test_what_a_tool_gives_piece_by_piece_is_read_in_a_thread(made: Tool) -> None:
    READ_IN.clear()
    assert (
        await only(ToolExecutor([made]), made.spec.name, number=3)
    ).content == "[0, 1, 4]"
    assert READ_IN == ["agentrl-tool"] * 3


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_generator_that_hangs_is_abandoned_and_counted(is_async: bool) -> None:
    release = threading.Event()

    def waits() -> Iterator[str]:
        yield str(release.wait(DEADLINE_S))

    async def later() -> Iterator[str]:
        """Wait."""
        return waits()

    def now() -> Iterator[str]:
        """Wait."""
        return waits()

    made = tool(later if is_async else now)
    executor = ToolExecutor([made], deadline_s=0.05)
    before = TOOL_THREADS.num_abandoned

    assert (await only(executor, made.spec.name)).error == "timeout"
    release.set()
    assert TOOL_THREADS.num_abandoned - before == 1


async def test_a_sync_tool_that_hangs_is_abandoned_and_counted() -> None:
    release = threading.Event()

    @tool
    def hang() -> str:
        release.wait(DEADLINE_S)
        return ""

    executor = ToolExecutor([hang], deadline_s=0.05)
    result = await only(executor, "hang")
    # beside those that other tests left
    still_running = TOOL_THREADS.num_abandoned
    release.set()

    assert result.error == "timeout"
    assert executor.num_abandoned == 1
    assert still_running >= 1


async def test_a_timeout_error_of_the_tools_own_is_an_exception() -> None:
    @tool
    def fetch() -> str:
        raise TimeoutError("the server does not answer")

    result = await only(ToolExecutor([fetch]), "fetch")

    assert (result.error, result.content) == (
        "exception",
        "Error: fetch raised TimeoutError: the server does not answer",
    )


async def test_cancelling_the_run_cancels_its_tools() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def hang() -> str:
        started.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()
        return ""

    running = asyncio.create_task(results(ToolExecutor([hang]), ("hang", {})))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert ended.is_set()


async def test_ten_megabytes_are_cut_with_a_mark() -> None:
    @tool
    def flood() -> str:
        return "a" * 5_000_000 + "z" * 5_000_000

    result = await only(ToolExecutor([flood], max_output_chars=100), "flood")

    assert result.truncated
    assert (
        result.content
        == "a" * 50 + "\n[... 9999900 of 10000000 characters left out ...]\n" + "z" * 50
    )


async def test_a_tools_own_limit_goes_before_the_executors() -> None:
    @tool(max_output_chars=4)
    def long() -> str:
        return "abcdefgh"

    assert (await only(ToolExecutor([long]), "long")).content.startswith("ab\n[... 4 of 8")


async def test_bytes_that_are_no_text_are_replaced() -> None:
    @tool
    def binary() -> bytes:
        return b"ok \xff\xfe"

    assert (await only(ToolExecutor([binary]), "binary")).content == "ok \ufffd\ufffd"


async def test_half_a_surrogate_pair_is_replaced() -> None:
    @tool
    def odd() -> str:
        return "a\udcff"

    (await only(ToolExecutor([odd]), "odd")).content.encode("utf-8")


async def test_an_output_may_tell_its_error_and_numbers() -> None:
    @tool
    def measure() -> ToolOutput:
        return ToolOutput("slow", error="timeout", metrics={"cpu_s": 1.0})

    result = await only(ToolExecutor([measure]), "measure")

    assert (result.content, result.error, result.metrics) == (
        "slow",
        "timeout",
        {"cpu_s": 1.0},
    )


async def test_a_tool_class_that_gives_no_text_is_our_error() -> None:
    class Wrong(Tool):
        spec = ToolSpec("wrong", "", {"type": "object"})

        async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> str:
            return 7  # type: ignore[return-value]

    with pytest.raises(ToolError, match="tool 'wrong': call must give a str"):
        await only(ToolExecutor([Wrong()]), "wrong")


async def test_each_call_has_a_seed_of_its_own_that_repeats() -> None:
    @tool
    def draw(context: ToolContext) -> int:
        return context.seed

    executor = ToolExecutor([draw])
    wanted = calls(("draw", {}), ("draw", {}))
    first, again, other = [
        [r.result.content for r in await executor.run(wanted, seed=seed) if r.result]
        for seed in (1, 1, 2)
    ]

    assert first == again
    assert len({*first, *other}) == 4


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ToolError, match=r"different names, got \['add'\] more than once"):
        ToolExecutor([add, add])
