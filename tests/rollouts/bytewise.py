"""A renderer of one token a byte, and episodes on a ScriptedEngine that speaks it.

Ids 0 to 255 are bytes, END ends a message, and each role opens with its own marker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from agentrl.engines.scripted import ScriptedEngine
from agentrl.envs import EnvSpec, EpisodeView, RewardFn, Rubric, ToolEnv
from agentrl.rollouts import (
    EpisodeContext,
    EpisodeKey,
    EpisodeSettings,
    RolloutSpec,
    StagePermits,
    run_episode,
)
from agentrl.tools import tool
from agentrl.tools.parsers import load_parser
from agentrl.types import Message, Segment, SegmentKind, Task, ToolSpec, Trajectory

END, SYSTEM, USER, ASSISTANT, TOOL = range(256, 261)
VOCAB = 261
MODEL_VOCAB = 264
"""The model's embedding is padded, as real ones are: it can sample ids that the tokenizer does not
have.
"""

MARKERS = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT, "tool": TOOL}
PROMPT, POLICY, OBSERVATION, TEMPLATE, TARGET = SegmentKind

Part = TypeVar("Part")


def ids(*parts: str | int) -> list[int]:
    """Bytes of the texts, and markers as they are."""
    return list(
        chain.from_iterable((p,) if isinstance(p, int) else p.encode() for p in parts)
    )


def say(text: str) -> list[int]:
    """A completion that ends as it should."""
    return ids(text, END)


def call(name: str, **arguments: Any) -> str:
    """A tool call as the model writes it."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@tool
def add(a: int, b: int) -> str:
    """The sum.

    Args:
        a: one number.
        b: the other.
    """
    return str(a + b)


class BytewiseRenderer:
    """``Renderer`` of one token a byte; ``rewrites`` makes it one whose template rewrites
    history.
    """

    family = "bytewise"
    vocab_size = VOCAB
    image_token_ids: frozenset[int] = frozenset()
    stop_token_ids = (END,)

    def __init__(self, *, rewrites: bool = False) -> None:
        self._rewrites = rewrites

    def token_ends(self, text: str) -> list[int]:
        return list(range(1, len(text) + 1))

    def fewest_tokens(self, messages: Sequence[Message]) -> int:
        return sum(len(str(message["content"]).strip()) for message in messages)

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
    ) -> tuple[Segment, ...]:
        opening = [f"[{tool.name}]" for tool in tools]
        said = [ids(MARKERS[m["role"]], self._text(m), END) for m in messages]
        return (_segment(PROMPT, [*ids(*opening), *chain.from_iterable(said), ASSISTANT]),)

    def extend(
        self,
        completion: npt.NDArray[np.int32],
        messages: Sequence[Message],
        history: Sequence[Message] = (),
        tools: Sequence[ToolSpec] = (),
    ) -> tuple[Segment, ...] | None:
        if self._rewrites:
            return None
        between = [] if completion[-1:].tolist() == [END] else [END]
        segments = []
        for message in messages:
            segments.append(_segment(TEMPLATE, [*between, MARKERS[message["role"]]]))
            segments.append(_segment(OBSERVATION, ids(self._text(message))))
            between = [END]
        return (*segments, _segment(TEMPLATE, [*between, ASSISTANT]))

    def target(self, message: Message) -> Segment:
        return _segment(TARGET, [*ids(self._text(message)), END])

    def decode(self, token_ids: npt.NDArray[np.int32]) -> str:
        tokens = token_ids.tolist()
        tokens = tokens[:-1] if tokens[-1:] == [END] else tokens
        runs = bytearray()
        for token in tokens:
            runs += bytes([token]) if token < 256 else "\ufffd".encode()
        return runs.decode(errors="replace")

    def tokenize(self, text: str) -> npt.NDArray[np.int32]:
        return np.asarray(ids(text), dtype=np.int32)

    @staticmethod
    def _text(message: Message) -> str:
        calls = [entry["function"] for entry in message.get("tool_calls", ())]
        return str(message["content"]) + "".join(
            call(entry["name"], **entry["arguments"]) for entry in calls
        )


def _segment(kind: SegmentKind, tokens: list[int]) -> Segment:
    return Segment(kind, np.asarray(tokens, dtype=np.int32))


@dataclass(frozen=True)
class Built(Generic[Part]):
    """A factory of what is there already."""

    part: Part

    def build(self) -> Part:
        return self.part


def length_reward(view: EpisodeView) -> float:
    """How long the last message is."""
    return float(len(view.final_text))


EPISODE = EpisodeSettings(
    max_turns=5,
    max_turn_tokens=200,
    max_response_tokens=1000,
    context_tokens=2000,
    episode_timeout_s=600.0,
    turn_timeout_s=600.0,
)


def rollout_spec(
    *,
    tools: Sequence[Any] = (),
    env: EnvSpec | None = None,
    reward: RewardFn = length_reward,
    renderer: BytewiseRenderer | None = None,
    permits: StagePermits | None = None,
    max_prompt_tokens: int = 100,
    cleanup_s: float = 10.0,
    step_reward_weight: float = 1.0,
    env_settings: Mapping[str, Any] | None = None,
    **episode: Any,
) -> RolloutSpec:
    kwargs = {
        "tools": list(tools),
        "describe_tools_in_prompt": False,
        **(env_settings or {}),
    }
    return RolloutSpec(
        env=env or EnvSpec(ToolEnv, kwargs=kwargs),
        renderer=Built(renderer or BytewiseRenderer()),  # type: ignore[arg-type]
        parser="hermes",
        rubric=Built(Rubric([reward])),
        episode=EPISODE.replace(**episode),
        max_prompt_tokens=max_prompt_tokens,
        root_seed=7,
        step_reward_weight=step_reward_weight,
        permits=permits or StagePermits(),
        cleanup_s=cleanup_s,
    )


def scripted(script: Any, **settings: Any) -> ScriptedEngine:
    return ScriptedEngine(script, **{"vocab_size": MODEL_VOCAB} | settings)


def context_of(spec: RolloutSpec, engine: Any) -> EpisodeContext:
    assert spec.renderer is not None
    return EpisodeContext(
        spec,
        engine,
        spec.renderer.build(),
        load_parser(spec.parser),
        spec.rubric.build(),
    )


TASK = Task("t", ({"role": "user", "content": "hi"},))
KEY = EpisodeKey(group_index=4, rollout_index=1)


async def play(
    script: Any, *, task: Task = TASK, key: EpisodeKey = KEY, **settings: Any
) -> Trajectory:
    """One episode; ``script`` is a ScriptedEngine or what one is made of."""
    own = {
        name: settings.pop(name) for name in ("previous", "sampling") if name in settings
    }
    engine = script if hasattr(script, "generate") else scripted(script)
    return await run_episode(context_of(rollout_spec(**settings), engine), task, key, **own)


def laid_out(trajectory: Trajectory) -> list[list[tuple[str, list[int]]]]:
    """The kinds and ids of each turn's segments."""
    return [
        [(segment.kind.name, segment.token_ids.tolist()) for segment in turn.segments]
        for turn in trajectory.turns
    ]


@dataclass
class Script:
    """Answers by turn, the same for every session, with what was asked kept."""

    turns: Sequence[Sequence[int]]
    asked: list[Any] = field(default_factory=list)

    def __call__(self, request: Any) -> Sequence[int]:
        self.asked.append(request)
        return self.turns[int(request.request_id.rpartition("/")[2])]
