"""Fuzzed talk: hostile messages and arbitrary ids of models and environments."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from agentrl.envs import Env
from agentrl.render import Renderer
from agentrl.types import (
    Action,
    GenerateRequest,
    Message,
    Observation,
    StepResult,
    Task,
    ToolCall,
    ToolSpec,
)

__all__ = ["STOP", "FuzzedEnv", "FuzzedModel"]

STOP = "HALT!"
"""A stop string, which no tokenizer here has as one token."""

PLAIN = (
    *("word", " two words", "naïve", "日本語", "🙂👩‍👩‍👧", "e\u0301", "\u202eabc", "\u200d", "\x00", "\x1b[31m"),  # noqa: E501
    *("\n", "\n\n", "  ", "\t", " \n ", "1234567890", "{", "}", '{"name": "', '"arguments": ', "[]", "\\n", "'", '"'),  # noqa: E501
    *("```json\n", "```", "<", "|", ">", "</", "<|", "|>", "｜", "\U0010fff0", "\U0010fff1", "\U0010fff2"),  # noqa: E501
    *("\ufffd", "<think", "im_end|>"),
)  # fmt: skip


def hostile(rng: random.Random, markers: Sequence[str], most: int = 8) -> str:
    """Text of plain pieces, markers whole and in parts."""
    pieces = []
    for _ in range(rng.randrange(most + 1)):
        marker = rng.choice(markers)
        cut = rng.randrange(len(marker) + 1)
        pieces.append(
            rng.choice(
                (rng.choice(PLAIN), rng.choice(PLAIN), marker, marker[:cut], marker[cut:])
            )
        )
    return "".join(pieces)


class FuzzedEnv(Env):
    """Answers every call and every problem with hostile text, speaks as a user, and now and then
    rewrites history.

    Args:
        task: its ``info`` has ``seed``, ``markers`` and ``tools``.
    """

    def __init__(self, task: Task) -> None:
        self._rng = random.Random(task.info["seed"])
        self._markers: Sequence[str] = task.info["markers"]
        self._with_tools: bool = task.info["tools"]

    def reset(self, *, seed: int) -> Observation:
        """The opening: a system's message or none, and a question."""
        rng = self._rng
        opening: list[Message] = [self._user()]
        if rng.random() < 0.4 and self._with_tools:
            opening.insert(0, {"role": "system", "content": self._text()})
        if not self._with_tools or rng.random() < 0.3:
            return Observation(tuple(opening), tools=())
        parameters = {
            "type": "object",
            "properties": {"text": {"type": "string"}, "n": {"type": "integer"}},
        }
        tools = tuple(
            ToolSpec(name, f"Does {self._text()}.", parameters)
            for name in ("find", "run_it")
        )
        return Observation(tuple(opening), tools=tools)

    def step(self, action: Action) -> StepResult:
        """Answers, or the end."""
        rng = self._rng
        if rng.random() < 0.2:
            return StepResult(Observation(), terminated=True)
        if rng.random() < 0.05:
            history: tuple[Message, ...] = (self._user(),)
            more = (
                (self._user(),) if self._with_tools and rng.random() < 0.2 else ()
            )  # some templates want turns in turn
            return StepResult(Observation(more, rewrite=history))
        answered: list[Any] = [*action.tool_calls, *action.problems]
        said: list[Message] = [
            {
                "role": "tool",
                "content": self._text(),
                "tool_call_id": call.id,
                "name": getattr(call, "name", ""),
            }
            for call in answered
        ]
        if not said or rng.random() < 0.1:
            said.append(self._user())
        return StepResult(Observation(tuple(said)))

    def _user(self) -> Message:
        # Qwen3's template takes a user's text that is one whole <tool_response> for a tool's: a
        # letter keeps it apart
        return {"role": "user", "content": f"Q{self._text()}"}

    def _text(self) -> str:
        return hostile(self._rng, self._markers)


class FuzzedModel:
    """A script for ``ScriptedEngine``: turns well formed, spelt otherwise, cut, empty, broken, or
    any ids at all.

    Args:
        renderer: writes the well-formed ones.
        markers: texts of the added tokens.
        max_calls: calls of a turn.
        thinks: whether it writes thoughts of its own; where thinking is off, the prompt has closed
            them.
        seed: of everything it says; a request's id makes the rest.
    """

    def __init__(
        self,
        renderer: Renderer,
        markers: Sequence[str],
        *,
        max_calls: int,
        thinks: bool,
        seed: int,
    ) -> None:
        self._renderer = renderer
        self._markers = markers
        self._max_calls = max_calls
        self._thinks = thinks
        self._seed = seed

    def __call__(self, request: GenerateRequest) -> list[int]:
        """The ids that it makes for a request."""
        rng = random.Random(f"{self._seed}/{request.request_id}")
        stop = rng.choice(self._renderer.stop_token_ids)
        kind = rng.random()
        if kind < 0.06:
            return []
        if kind < 0.10:
            return [stop]
        if kind < 0.20:
            return [
                rng.randrange(self._renderer.vocab_size)
                for _ in range(rng.randrange(1, 25))
            ]
        if kind < 0.32:
            return [*self._ids(hostile(rng, self._markers, most=10)), stop]
        ids = self._renderer.target(self._message(rng)).token_ids.tolist()
        if kind < 0.42:
            return list(ids[: rng.randrange(len(ids) + 1)])
        if kind < 0.55:  # the same text in the shortest tokens there are
            text = self._renderer.decode(np.asarray(ids, dtype=np.int32))
            return [*(token for character in text for token in self._ids(character)), stop]
        return list(ids)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._renderer.tokenize(text).tolist()
        return ids

    def _message(self, rng: random.Random) -> Message:
        words = hostile(rng, PLAIN, most=4)
        if rng.random() < 0.3:
            words += f"{STOP} {words}"
        message: Message = {"role": "assistant", "content": words}
        if self._thinks and rng.random() < 0.3:
            message["reasoning_content"] = hostile(rng, PLAIN, most=4)
        calls = rng.randrange(self._max_calls + 1)
        if calls:
            message["content"] = words if rng.random() < 0.3 else ""
            names = ("find", "run_it", hostile(rng, self._markers, most=2) or "x")
            message["tool_calls"] = [
                ToolCall(
                    f"call_{index}",
                    rng.choice(names),
                    {"text": hostile(rng, PLAIN), "n": index},
                ).openai()
                for index in range(calls)
            ]
        return message
