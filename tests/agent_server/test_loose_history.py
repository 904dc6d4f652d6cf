"""Histories that a harness rewrites: which still extend their turn, and which begin a sequence."""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.agent_server import ServedEpisode
from agentrl.agent_server.api.chat_completions import CompletionAnswer
from agentrl.agent_server.api.constraints import AnswerConstraints
from agentrl.agent_server.api.dialect import Asked
from agentrl.agent_server.history import Continuation, HistoryEntry, HistoryIndex
from agentrl.agent_server.stream_writer import StreamWriter
from agentrl.llm import to_wire
from agentrl.rollouts import EpisodeKey
from agentrl.rollouts.builder import SequenceState, TrajectoryBuilder
from agentrl.rollouts.turns import TurnGenerator
from agentrl.types import GenerateRequest, SegmentKind, Trajectory, concat_ids
from tests.agent_server.served_policy import assert_true
from tests.rollouts.bytewise import TASK, call, context_of, rollout_spec, say, scripted

LONG = 12345678901234567890
ROOM = {
    "max_turns": 40,
    "max_prompt_tokens": 20_000,
    "max_response_tokens": 20_000,
    "context_tokens": 40_000,
}
SAID: Any = {"role": "assistant", "content": "ok"}
REMINDER = "<system-reminder>\nmind the {}\n</system-reminder>"
SAYS = [
    "ok  then",
    "<think>hm\nhm</think>so it is",
    "look" + call("add", a=1, b={"c": [LONG, "é", True]}),
    "<think>which</think>" + call("add", b=2.5) + call("sub", a="x y"),
]
USER = ["go", "do \n it", "see " + REMINDER.format("gap")]


def spoken(request: GenerateRequest) -> list[int]:
    return say(random.Random(request.seed).choice(SAYS))


class Harness:
    """A harness that keeps what was said, and writes it anew in each request.

    Args:
        seed: of what it says and rewrites.
        system: what its conversation opens with.
    """

    def __init__(self, seed: int, system: str = "be  kind") -> None:
        self.rng = random.Random(seed)
        self.history: list[dict[str, Any]] = [{"role": "system", "content": system}]
        self.new: list[dict[str, Any]] = [
            {"role": "user", "content": self.rng.choice(USER)}
        ]

    def hear(self, message: Any) -> None:
        wire = json.loads(json.dumps(to_wire(message, reasoning=True)))
        self.history += [*self.new, wire]
        self.new = [
            {"role": "tool", "tool_call_id": made["id"], "content": f"{n}  done"}
            for n, made in enumerate(wire.get("tool_calls", ()))
        ]
        if not self.new or self.rng.random() < 0.3:
            self.new.append({"role": "user", "content": self.rng.choice(USER)})

    def rewritten(self) -> tuple[list[dict[str, Any]], Counter[str]]:
        """The history, and how many of its messages were rewritten in each way."""
        told, kinds = [], Counter[str]()
        for message in copy.deepcopy(self.history):
            told.append(message)
            if message["role"] == "system":
                continue
            kinds.update(getattr(self, f"_{message['role']}")(message))
            if message["role"] != "assistant" and self.rng.random() < 0.2:
                told.append({"role": "user", "content": REMINDER.format("time")})
        return told, kinds

    def _user(self, message: dict[str, Any]) -> set[str]:
        said = message["content"]
        if self.rng.random() < 0.3:
            message["content"] = said.partition("<system")[0]
        if self.rng.random() < 0.3:
            message["content"] += "\n" + REMINDER.format(self.rng.random())
        if message["content"] != said:
            return {"reminders"}
        return self._spaced(message)

    _tool = _user

    def _assistant(self, message: dict[str, Any]) -> set[str]:
        kinds = self._spaced(message) if message["content"] else set()
        if "reasoning_content" in message and self.rng.random() < 0.5:
            kinds.add("thoughts")
            message["reasoning_content"] = ""
            if self.rng.random() < 0.5:
                del message["reasoning_content"]
        for made in message.get("tool_calls", ()):
            text = made["function"]["arguments"]
            if self.rng.random() < 0.5:
                arguments = json.loads(text, parse_int=self._number)
                made["function"]["arguments"] = json.dumps(
                    dict(reversed(arguments.items())), indent=self.rng.choice([None, 2])
                )
                if str(LONG) in text and str(LONG) not in made["function"]["arguments"]:
                    kinds.add("arguments")
        return kinds

    def _number(self, text: str) -> float:
        """As JavaScript reads it, or whole."""
        return self.rng.choice([int, float])(text)

    def _spaced(self, message: dict[str, Any]) -> set[str]:
        if self.rng.random() < 0.6:
            return set()
        message["content"] = (
            " " + message["content"].replace("\n", " ").replace(" ", " \n") + "\t"
        )
        return {"white_space"}


class Served:
    """An episode, asked by messages."""

    def __init__(self, script: Any = spoken, *, loose: bool = True, seed: int = 0) -> None:
        self.engine = scripted(script)
        parts = context_of(rollout_spec(**ROOM), self.engine)
        self.builder = TrajectoryBuilder(EpisodeKey(seed, 0), TASK)
        turns = TurnGenerator(parts, self.builder, parts.spec.episode.sampling)
        self.episode = ServedEpisode(turns, loose_history=loose)

    async def ask(self, *messages: dict[str, Any], **more: Any) -> Any:
        body = json.loads(json.dumps({"messages": messages, **more}))
        turn = await self.episode.complete(StreamWriter(CompletionAnswer(Asked(body)).chat))
        return turn.action.message

    async def end(self) -> Trajectory:
        await self.episode.close()
        return self.builder.finish(await self.episode.until_end())


async def rewrite(seed: int, num_turns: int) -> None:
    served = Served(seed=seed)
    harness = Harness(seed)
    expected = []
    for _ in range(num_turns):
        told, kinds = harness.rewritten()
        expected.append(dict(kinds))
        harness.hear(await served.ask(*told, *harness.new))
    trajectory = await served.end()
    assert_true(trajectory, served.engine)
    # one sequence, in which each sampled token is trained once and no other is
    (sample,) = trajectory.samples()
    assert sample.owned == set(range(num_turns))
    trained = [one for one in sample.segments if one.kind is SegmentKind.POLICY]
    made = [spoken(request) for request in served.engine.requests]
    assert concat_ids(trained).tolist() == [token for turn in made for token in turn]
    assert [turn.info.get("repairs", {}) for turn in trajectory.turns] == expected
    assert trajectory.info.get("repairs", {}) == Counter(
        kind for kinds in expected for kind in kinds
    )
    # what was not sampled is the opening, and what each request brought at its end
    context = bytes(i for i in concat_ids(sample.segments).tolist() if i < 256).decode()
    assert REMINDER.format("time") not in context


@settings(max_examples=25)
@given(seed=st.integers(0, 1 << 30))
def test_a_rewritten_history_extends_its_turn(seed: int) -> None:
    asyncio.run(rewrite(seed, 5))


def ended_with(message: Any, found: Continuation) -> HistoryEntry:
    before = () if found.entry is None else found.entry.client_messages
    said = (*before, *found.new, message)
    return HistoryEntry(SequenceState(""), said, (), AnswerConstraints(), ())


def test_turns_share_what_is_compared_of_their_conversation() -> None:
    index = HistoryIndex(loose=True)
    told: list[Any] = [{"role": "user", "content": "hi"}]
    shared = []
    for turn in range(3):
        found = index.find(told, ())
        shared.append(found.compared)
        message: Any = {"role": "assistant", "content": f"{turn}"}
        index.add(ended_with(message, found), found)
        told += [message, {"role": "user", "content": "on"}]
    assert [len(one) for one in shared] == [0, 2, 4]
    assert all(one is other for one, other in zip(shared[1], shared[2], strict=False))


def test_reminders_that_are_never_closed_cost_one_look() -> None:
    """A policy can have a tool say them; a pattern would take an hour."""
    index = HistoryIndex(loose=True)
    opened = "<system-reminder> x" * 200_000
    found = index.find([{"role": "user", "content": opened}], ())
    index.add(ended_with(SAID, found), found)
    ended = {"role": "user", "content": opened + " </system-reminder>"}
    assert index.find([ended, SAID, *found.new], ()).entry is None
    spaced = {"role": "user", "content": " " + opened}
    assert index.find([spaced, SAID, *found.new], ()).repairs == {"white_space": 1}


@pytest.mark.tooling
def test_ten_thousand_rewritten_histories_extend_their_turns() -> None:
    # the first request of an episode repeats nothing
    for seed in range(1250):
        asyncio.run(rewrite(seed, 9))


def turned(history: list[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    """A history in which something else was said."""
    system, user, made, *others = copy.deepcopy(history)
    arguments = made["tool_calls"][0]["function"]
    match what:
        case "words":
            made["content"] = "locked"
        case "thoughts":
            made["reasoning_content"] = "hmm"
        case "name":
            arguments["name"] = "sub"
        case "value":
            arguments["arguments"] = '{"a": true}'
        case "text":
            arguments["arguments"] = '{"a": "1"}'
        case "system":
            system["content"] += " "
        case "result":
            others[0]["content"] = "four"
        case "dropped":
            return [system, user]
    return [system, user, made, *others]


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        *(
            (what, "edited")
            for what in ("words", "thoughts", "name", "value", "text", "result")
        ),
        ("system", "sub_agent"),
        ("tools", "sub_agent"),
        ("dropped", "compaction"),
    ],
)
@pytest.mark.parametrize("loose", [True, False])
async def test_what_was_said_otherwise_begins_a_sequence(
    what: str, cause: str, *, loose: bool
) -> None:
    served = Served(
        [say("<think>hm</think>look" + call("add", a=1)), say("3"), say("x")], loose=loose
    )
    history = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
    first = to_wire(await served.ask(*history), reasoning=True)
    result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "3"}
    history += [first, result]
    history.append(to_wire(await served.ask(*history)))
    tools = [{"type": "function", "function": {"name": "sub"}}] if what == "tools" else []
    await served.ask(*turned(history, what), {"role": "user", "content": "on"}, tools=tools)
    trajectory = await served.end()
    assert [turn.parent for turn in trajectory.turns] == [None, 0, None]
    assert trajectory.info["restarts"] == {cause: 1}
    assert "repairs" not in trajectory.turns[2].info


async def test_of_two_turns_the_one_that_was_repeated_exactly_goes_on() -> None:
    said_by_turn = iter(["a b", "a  b", "x", "y"])
    served = Served(lambda request: say(next(said_by_turn)))
    hi = {"role": "user", "content": "hi"}
    first, second = [await served.ask(hi) for _ in range(2)]
    for said in (first, second):
        await served.ask(hi, to_wire(said), hi)
    trajectory = await served.end()
    assert [turn.parent for turn in trajectory.turns] == [None, None, 0, 1]
    assert all("repairs" not in turn.info for turn in trajectory.turns)


async def test_a_strict_history_takes_no_other_white_space() -> None:
    served = Served([say("a b"), say("x")], loose=False)
    hi = {"role": "user", "content": "hi"}
    said = to_wire(await served.ask(hi))
    await served.ask(hi, {**said, "content": "a b "}, hi)
    assert (await served.end()).info["restarts"] == {"edited": 1}
