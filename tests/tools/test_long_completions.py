"""Completions too long to be read on the event loop are read beside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from agentrl.tools.parsers import (
    READ_AT_ONCE,
    GLMParser,
    HermesParser,
    LlamaParser,
    ToolCallParser,
    read_completion,
)
from agentrl.types import ParsedMessage, ToolSpec

TOOL = ToolSpec(
    "f", "Does it.", {"type": "object", "properties": {"a": {"type": "string"}}}
)
FILLED = "word " * (READ_AT_ONCE // 5)
CALLS = {
    HermesParser: '<tool_call>{"name": "f", "arguments": {"a": '
    '"12"}}</tool_call><tool_call>{</tool_call>',
    GLMParser: "<tool_call>f<arg_key>a</arg_key><arg_value>12</arg_value></tool_call></tool_call>",
    LlamaParser: '{"name": "f", "parameters": {"a": "12"}} {"name": }',
}


@pytest.mark.parametrize("parser", CALLS)
async def test_a_long_completion_is_read_as_a_short_one_is(
    parser: type[ToolCallParser],
) -> None:
    text = f"{FILLED}\n{CALLS[parser]}"
    assert len(text) > READ_AT_ONCE

    parsed = await read_completion(parser(), text, (TOOL,))

    assert parsed == parser().parse(text, (TOOL,))
    assert [dict(call.arguments) for call in parsed.tool_calls] == [{"a": "12"}]
    assert len(parsed.problems) == 1


async def turns_of_the_loop(parser: ToolCallParser, text: str) -> int:
    """How often another coroutine has its turn while a text is read."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await read_completion(parser, text)
    beside.cancel()
    return turns


async def test_others_go_on_while_a_long_completion_is_read() -> None:
    assert await turns_of_the_loop(HermesParser(), "<tool_call>" * READ_AT_ONCE) > 100


async def test_a_short_completion_is_read_at_once() -> None:
    assert await turns_of_the_loop(HermesParser(), "word") == 0


async def test_a_long_completion_is_read_in_a_thread_by_a_parser_of_ones_own() -> None:
    read_in: list[str] = []

    class Own:
        def parse(self, text: str, tools: Sequence[ToolSpec] = ()) -> ParsedMessage:
            read_in.append(threading.current_thread().name)
            return ParsedMessage({"role": "assistant", "content": text}, (), ())

    parsed = await read_completion(Own(), FILLED + "words")

    assert parsed.message["content"] == FILLED + "words"
    assert read_in == ["agentrl-parser"]
