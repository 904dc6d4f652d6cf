"""A turn that is still being written: what is read of it is the beginning of what the whole one
says.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.agent_server.stream_writer import PartialMessage, PartialText
from agentrl.tools.parsers import (
    MarkedFormat,
    Marks,
    PlainParser,
    load_parser,
    stable_length,
)
from agentrl.types import Message, ParsedMessage, ToolSpec
from agentrl.types.messages import opened_thoughts
from tests.rollouts.bytewise import BytewiseRenderer, ids

TOOLS = (
    ToolSpec(
        "add", "", {"type": "object", "properties": {"a": {}, "b": {"type": "string"}}}
    ),
)
WORDS = [
    "so",
    " ",
    "\n",
    "é",
    "😀",
    "{x}",
    "a < b",
    "<tool",
    "</",
    "<|",
    "done.",
    "</tool_call> said",
    '"',
]


def hermes(arguments: dict[str, object]) -> str:
    return (
        f"<tool_call>\n{json.dumps({'name': 'add', 'arguments': arguments})}\n</tool_call>"
    )


def glm(arguments: dict[str, object]) -> str:
    pairs = (
        f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>add\n{''.join(pairs)}</tool_call>"


def deepseek(arguments: dict[str, object]) -> str:
    return (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>"
        f"{json.dumps(arguments)}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    )


def llama(arguments: dict[str, object]) -> str:
    return json.dumps({"name": "add", "parameters": arguments})


def harmony(arguments: dict[str, object]) -> str:
    return f"<|start|>assistant to=functions.add<|channel|>commentary json<|message|>{json.dumps(arguments)}<|call|>"  # noqa: E501


FORMATS: dict[str, Callable[[dict[str, object]], str]] = {
    "hermes": hermes,
    "glm": glm,
    "deepseek": deepseek,
    "llama": llama,
    "harmony": harmony,
}


def completion(name: str, rng: random.Random) -> str:
    """A turn as the format has it: thoughts, words, and calls whose arguments may hold anything."""
    words = [word for word in WORDS if not (name == "glm" and "tool_call" in word)]

    def text() -> str:
        return "".join(
            rng.choices(
                [word for word in words if "tool_call>" not in word], k=rng.randrange(4)
            )
        )

    def call() -> str:
        value = "".join(rng.choices(words, k=rng.randrange(3)))
        return FORMATS[name](
            {"a": rng.randrange(99), "b": value} if rng.random() < 0.7 else {}
        )

    if name == "harmony":
        thoughts = (
            f"<|channel|>analysis<|message|>{text()}<|end|>" if rng.random() < 0.5 else ""
        )
        said = f"<|start|>assistant<|channel|>final<|message|>{text()}"
        return thoughts + (call() if rng.random() < 0.5 else said)
    thoughts = f"<think>\n{text()}\n</think>\n\n" if rng.random() < 0.5 else ""
    calls = [call() for _ in range(rng.randrange(2 if name == "llama" else 4))]
    return (
        thoughts
        + "".join(text() + made for made in calls)
        + (text() if name != "llama" else "")
    )


def told(whole: Message, part: Message) -> bool:
    """Whether a part is the beginning of the whole."""
    return (
        whole["content"].startswith(part["content"])
        and whole.get("reasoning_content", "").startswith(part.get("reasoning_content", ""))
        and whole.get("tool_calls", [])[: len(part.get("tool_calls", []))]
        == part.get("tool_calls", [])
    )


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=150)
@given(seed=st.integers(0, 1 << 30))
def test_each_part_is_the_beginning_of_the_whole(name: str, seed: int) -> None:
    text, parser = completion(name, random.Random(seed)), load_parser(name)
    whole = parser.parse(text, TOOLS).message
    reading = PartialMessage(parser, TOOLS)
    for size in range(len(text) + 1):
        part = reading.read(text[:size])
        assert part is None or told(whole, part.message), (text, text[:size], part, whole)


@pytest.mark.parametrize("name", FORMATS)
def test_words_are_read_as_they_come(name: str) -> None:
    text = "<|channel|>final<|message|>hello there" if name == "harmony" else "hello there"
    part = PartialMessage(load_parser(name), TOOLS).read(text)
    assert part is not None
    assert part.message["content"] == "hello there"


@pytest.mark.parametrize("name", ["hermes", "glm", "deepseek"])
def test_a_closed_call_is_read_before_what_follows_it(name: str) -> None:
    text = FORMATS[name]({"a": 1})
    part = PartialMessage(load_parser(name), TOOLS).read(
        f"so {text}\n{text[: len(text) // 2]}"
    )
    assert part is not None
    assert [call.arguments for call in part.tool_calls] == [{"a": 1}]


def test_thoughts_that_the_prompt_began_are_thoughts() -> None:
    reading = PartialMessage(
        load_parser("hermes"), (), opened=opened_thoughts("assistant\n<think>\n")
    )
    part, whole = reading.read("well, <tool_call> or"), reading.read("well</think>so")
    assert part is not None
    assert (part.message["reasoning_content"], part.message["content"]) == (
        "well, <tool_call> or",
        "",
    )
    assert whole is not None
    assert (whole.message["reasoning_content"], whole.message["content"]) == ("well", "so")


def test_a_stop_string_is_never_told_nor_half_of_it() -> None:
    reading = PartialMessage(PlainParser(), (), stop=("END", "\n\n"))
    texts = ["a E", "a EN", "a END", "a END of", "a\n"]
    assert [part and part.message["content"] for part in map(reading.read, texts)] == [
        "a",
        "a",
        "a",
        "a",
        "a",
    ]


def test_nothing_is_told_of_a_format_that_does_not_say_how_it_is_marked() -> None:
    class Own:
        def parse(self, text: str, tools: object = ()) -> object:
            return PlainParser().parse(text)

    assert not isinstance(Own(), MarkedFormat)
    assert PartialMessage(Own(), ()).read("hello") is None  # type: ignore[arg-type]


def test_a_mark_is_settled_when_it_is_whole() -> None:
    marks = Marks(opens=("<a>",), closes=("</a>",))
    assert [
        stable_length(text, marks)
        for text in ("x<", "x<a", "x<a>", "x<a>y", "x<a>y</a>", "x<b")
    ] == [1, 1, 1, 1, 9, 3]


@settings(max_examples=200)
@given(text=st.text(max_size=20), cuts=st.lists(st.integers(0, 60), max_size=6))
def test_text_comes_in_whole_characters(text: str, cuts: list[int]) -> None:
    tokens = np.asarray([*ids(text), *ids("!")], dtype=np.int32)
    partial, before = PartialText(BytewiseRenderer().decode), ""
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), tokens.size], strict=True):
        now = partial.add(tokens[start:end])
        assert now.startswith(before)
        assert text.startswith(now.removesuffix("!"))
        before = now
    assert before == f"{text}!"


NO_TEXT = (0x80, 0xBF, 0xC3, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0xFF, 999)
"""Bytes within and at the beginning of characters, one of none, and an id that has no text."""


@settings(max_examples=200)
@given(
    tokens=st.lists(st.sampled_from(NO_TEXT) | st.integers(0, 255), max_size=60),
    step=st.integers(1, 5),
)
def test_bytes_that_are_no_text_are_told_as_the_whole_says_them(
    tokens: list[int], step: int
) -> None:
    array, renderer = np.asarray([*tokens, *ids("!")], dtype=np.int32), BytewiseRenderer()
    partial, whole = PartialText(renderer.decode), renderer.decode(array)
    for start in range(0, array.size, step):
        assert whole.startswith(partial.add(array[start : start + step]))
    assert partial.text == whole


def by_runs(array: npt.NDArray[np.int32]) -> str:
    """As tokenizers with a fallback to bytes decode: a run that is no text has a mark a byte."""
    try:
        return bytes(array.tolist()).decode()
    except UnicodeDecodeError:
        return "\ufffd" * array.size


@pytest.mark.parametrize(
    ("decode", "tokens"),
    [
        (BytewiseRenderer().decode, [999]),
        (BytewiseRenderer().decode, [0xF0, 0x9F, 0x98]),
        (BytewiseRenderer().decode, [0x80]),
        # what was told is taken back, and never settles
        (by_runs, [*"€".encode(), 0xFF]),
    ],
)
def test_ids_without_text_are_decoded_in_linear_time(
    decode: Callable[[npt.NDArray[np.int32]], str], tokens: list[int]
) -> None:
    decoded = 0

    def counted(array: npt.NDArray[np.int32]) -> str:
        nonlocal decoded
        decoded += array.size
        return decode(array)

    partial, costs = PartialText(counted), []
    for number in range(2000):
        partial.add(np.asarray([tokens[number % len(tokens)]], dtype=np.int32))
        costs.append(decoded)
    assert costs[-1] < 2.5 * costs[999]
    assert costs[-1] < 100 * 2000


def test_a_turn_is_read_so_seldom_that_all_of_its_readings_are_linear() -> None:
    read: list[int] = []

    class Counted(PlainParser):
        def parse(self, text: str, tools: Sequence[ToolSpec] = ()) -> ParsedMessage:
            read.append(len(text))
            return super().parse(text, tools)

    reading = PartialMessage(Counted(), ())
    for size in range(1, 20_001):
        reading.read("a" * size)
    # the lengths that are read grow by a 32nd each: their sum is about 32 times the last
    assert sum(read) < 40 * 20_000
    assert read[:30] == list(range(1, 31))
