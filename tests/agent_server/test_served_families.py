"""Agents that edit, drop and repeat their histories, on every family's real template: no account is
broken.
"""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from agentrl.agent_server import ServedEpisode
from agentrl.agent_server.api.api_error import PolicyApiError
from agentrl.agent_server.api.chat_completions import CompletionAnswer
from agentrl.agent_server.api.dialect import Asked
from agentrl.agent_server.stream_writer import StreamWriter
from agentrl.envs import EnvSpec, Rubric
from agentrl.llm import to_wire
from agentrl.rollouts import EpisodeContext, EpisodeKey, EpisodeSettings, RolloutSpec
from agentrl.rollouts.builder import TrajectoryBuilder
from agentrl.rollouts.turns import TurnGenerator, TurnResult
from agentrl.tools import parser_for
from agentrl.types import Task, Trajectory
from benchmarks.fuzz import (
    STOP,
    VARIANTS,
    Bookkeeper,
    FuzzedEnv,
    FuzzedModel,
    Watched,
    mask_errors,
    token_mismatches,
)
from benchmarks.fuzz.renderers import built_variant
from benchmarks.fuzz.talk import hostile
from tests.agent_server.speakers import SPEAKERS
from tests.agent_server.test_dialects import IMAGES
from tests.kit.marks import wide_but
from tests.rollouts.bytewise import Built, length_reward
from tests.rollouts.speaking_engine import SpeakingEngine

EPISODES = 12
KEEP_HISTORY = ("qwen2_5", "qwen3_instruct", "llama3_1", "qwen3_vl", "cohere", "gemma")
"""Variants whose template writes a history again as it was."""


def wrongly_told(pieces: list[dict[str, Any]], made: TurnResult) -> list[str]:
    """What the pieces of a stream say otherwise than the message that they are pieces of."""
    message, text = to_wire(made.action.message, reasoning=True), made.action.text
    joined = {
        name: "".join(piece.get(name, "") for piece in pieces)
        for name in ("content", "reasoning_content")
    }
    calls = [
        {name: value for name, value in call.items() if name != "index"}
        for piece in pieces
        for call in piece.get("tool_calls", [])
    ]
    same = joined["content"] == (message["content"] or "") and calls == message.get(
        "tool_calls", []
    )
    if (
        same and joined["reasoning_content"] == message.get("reasoning_content", "")
    ) or "</think>" in text:
        return []  # thoughts that nothing opened are known by their end alone
    return [f"{text!r} was told as {pieces}"]


class Agent:
    """A client of one episode.

    Args:
        episode: what it plays.
        rng: of all that it does.
        markers: texts of added tokens, with which it speaks.
        with_tools: whether the template has a place for tools.
        faithful: repeats its history as it was told.
    """

    def __init__(
        self,
        episode: ServedEpisode,
        rng: random.Random,
        markers: list[str],
        *,
        with_tools: bool,
        faithful: bool,
    ) -> None:
        self.episode = episode
        self.rng = rng
        self.markers = markers
        self.faithful = faithful
        self.history: list[dict[str, Any]] = []
        self.wrongly_told: list[str] = []
        names = ("find", "run_it") if with_tools and rng.random() < 0.7 else ()
        self.tools = [
            {
                "type": "function",
                "function": {"name": name, "description": f"Does {self._text()}."},
            }
            for name in names
        ]

    async def play(self) -> None:
        for _ in range(6):
            if not self.faithful:
                self._edit()
            if not await self._ask():
                self.history = []

    async def _ask(self) -> bool:
        answered = [
            {
                "role": "tool",
                "tool_call_id": made["id"],
                "name": made["function"]["name"],
                "content": self._text(),
            }
            for made in (self.history[-1].get("tool_calls") or () if self.history else ())
        ]
        said = answered or [{"role": "user", "content": f"Q{self._text()}"}]
        asked = json.loads(
            json.dumps(
                {"messages": [*self.history, *said], "tools": self.tools, "stream": True}
            )
        )
        request = CompletionAnswer(Asked(asked)).chat
        stream = StreamWriter(request)
        making = asyncio.create_task(self.episode.complete(stream))
        making.add_done_callback(lambda _: stream.news.set())
        pieces: list[dict[str, Any]] = []
        while not making.done():
            stream.news.clear()
            pieces += stream.deltas()
            await stream.news.wait()
        if isinstance(making.exception(), PolicyApiError):
            return False  # the template has no place for it
        made = making.result()
        self.wrongly_told += wrongly_told([*pieces, *stream.final_deltas(made)], made)
        answer = to_wire(made.action.message, reasoning=self.rng.random() < 0.5)
        self.history = [*self.history, *said, answer]
        return True

    def _edit(self) -> None:
        rng = self.rng
        if self.history and rng.random() < 0.25:
            chosen = rng.choice(self.history)
            chosen["content"] = f"Q{self._text()}"
            chosen.pop("reasoning_content", None)
        if rng.random() < 0.1:
            self.history = self.history[: 2 * rng.randrange(3)]
            while self.history and self.history[-1]["role"] != "assistant":
                self.history.pop()

    def _text(self) -> str:
        return hostile(self.rng, self.markers)


class Served:
    """Episodes of one variant, each held against its own books."""

    def __init__(self, name: str, folder: Path) -> None:
        self.variant = VARIANTS[name]
        inner, tokenizer = built_variant(self.variant, folder)
        self.markers = sorted(tokenizer.get_added_vocab())
        self.renderer = Watched(inner, tokenizer.get_added_vocab())
        thinks = self.variant.enable_thinking is not False
        self.model = FuzzedModel(
            inner, self.markers, max_calls=self.variant.max_calls, thinks=thinks, seed=1
        )
        self.parser = parser_for(inner, self.variant.parser)
        self.vocab_size, self.decode = inner.vocab_size, inner.decode

    def spec(self, rng: random.Random) -> RolloutSpec:
        """Limits and stop strings of an episode."""
        return RolloutSpec(
            env=EnvSpec(FuzzedEnv),
            renderer=Built(self.renderer),
            parser="auto",
            rubric=Built(Rubric([length_reward])),
            episode=EpisodeSettings(
                max_turns=30,
                max_turn_tokens=rng.choice((60, 1000)),
                max_response_tokens=20000,
                stop=(STOP,) if rng.random() < 0.3 else (),
            ),
            max_prompt_tokens=20000,
            root_seed=0,
        )

    async def play(self, number: int, *, faithful: bool) -> tuple[Trajectory, list[str]]:
        """The trajectory and its faults."""
        rng = random.Random(f"{self.variant.name}/{number}/{faithful}")
        spec = self.spec(rng)
        books = Bookkeeper(
            SpeakingEngine(
                self.model,
                lambda n: asyncio.sleep(0),
                vocab_size=self.vocab_size,
                decode=self.decode,
            )
        )
        parts = EpisodeContext(spec, books, self.renderer, self.parser, spec.rubric.build())
        key = EpisodeKey(number, int(faithful))
        builder = TrajectoryBuilder(key, Task("t"))
        episode = ServedEpisode(TurnGenerator(parts, builder, spec.episode.sampling))
        agent = Agent(
            episode, rng, self.markers, with_tools=self.variant.tools, faithful=faithful
        )
        await agent.play()
        episode.finish()
        builder.reward = 0.0
        trajectory = builder.finish(await episode.until_end())
        assert len(books.given) == len(trajectory.turns)
        for index, request in enumerate(list(books.given)):  # one is made after the other
            books.given[f"t/{index}"] = books.given[request]
            books.made[f"t/{index}"] = books.made[request]
        faults = token_mismatches(trajectory, "t", books) + mask_errors(
            trajectory, "t", books
        )
        return trajectory, [
            *faults,
            *(agent.wrongly_told if self.variant.name != "gptoss" else ()),
        ]


async def test_thoughts_that_the_prompt_opened_are_no_answer_though_they_were_cut(
    tmp_path: Path,
) -> None:
    served = Served("deepseekv3", tmp_path)
    spec = served.spec(random.Random(0))
    ids = served.renderer.tokenize("The answer may be 42")
    engine = SpeakingEngine(
        [ids.tolist()], lambda n: asyncio.sleep(0), vocab_size=served.vocab_size
    )
    parts = EpisodeContext(
        spec, engine, served.renderer, served.parser, spec.rubric.build()
    )
    episode = ServedEpisode(
        TurnGenerator(
            parts, TrajectoryBuilder(EpisodeKey(0, 0), Task("t")), spec.episode.sampling
        )
    )
    agent = Agent(episode, random.Random(0), ["<think>"], with_tools=False, faithful=True)
    agent.tools = []
    assert await agent._ask()
    assert agent.wrongly_told == []
    (turn,) = episode._turns.builder.turns
    assert (turn.message["content"], turn.message["reasoning_content"]) == (
        "",
        "The answer may be 42",
    )
    assert turn.text == "The answer may be 42"


async def test_text_that_is_no_text_is_refused_and_the_episode_goes_on(
    tmp_path: Path,
) -> None:
    served = Served("qwen3_instruct", tmp_path)
    spec = served.spec(random.Random(0))
    parts = EpisodeContext(
        spec,
        SpeakingEngine(served.model, vocab_size=served.vocab_size, decode=served.decode),
        served.renderer,
        served.parser,
        spec.rubric.build(),
    )
    episode = ServedEpisode(
        TurnGenerator(
            parts, TrajectoryBuilder(EpisodeKey(0, 0), Task("t")), spec.episode.sampling
        )
    )
    with pytest.raises(PolicyApiError, match="half of a surrogate pair") as refused:
        await episode.complete(
            StreamWriter(
                CompletionAnswer(
                    Asked(
                        json.loads('{"messages": [{"role": "user", "content": "\\ud800"}]}')
                    )
                ).chat
            )
        )
    assert refused.value.status == 400
    await episode.complete(
        StreamWriter(
            CompletionAnswer(Asked({"messages": [{"role": "user", "content": "hi"}]})).chat
        )
    )


async def test_an_image_for_a_model_of_text_alone_is_refused_in_each_dialect(
    tmp_path: Path,
) -> None:
    served = Served("qwen3_instruct", tmp_path)
    spec = served.spec(random.Random(0))
    engine = SpeakingEngine(
        served.model, vocab_size=served.vocab_size, decode=served.decode
    )
    parts = EpisodeContext(
        spec, engine, served.renderer, served.parser, spec.rubric.build()
    )
    episode = ServedEpisode(
        TurnGenerator(
            parts, TrajectoryBuilder(EpisodeKey(0, 0), Task("t")), spec.episode.sampling
        )
    )
    for speak in SPEAKERS:
        speaker = speak()
        speaker.history.append(
            {"role": "user", "content": [IMAGES[speak.answer.path]("png")]}
        )
        chat = speak.answer(Asked(speaker.body())).chat
        with pytest.raises(
            PolicyApiError, match="1 images, and the model takes text alone"
        ) as no:
            await episode.complete(StreamWriter(chat))
        assert no.value.status == 400
    assert engine.requests == []


@pytest.mark.parametrize("name", wide_but([*VARIANTS][::6], VARIANTS))
def test_whatever_an_agent_does_with_its_history_every_account_is_kept(
    name: str, tmp_path: Path
) -> None:
    served, turns = Served(name, tmp_path), 0
    for number in range(EPISODES):
        for faithful in (False, True):
            trajectory, faults = asyncio.run(served.play(number, faithful=faithful))
            assert faults == []
            turns += len(trajectory.turns)
            if faithful and name in KEEP_HISTORY:
                chain = [turn.parent for turn in trajectory.turns]
                assert chain == [None, *range(len(chain) - 1)]
    assert served.renderer.violations == []
    assert turns > EPISODES
