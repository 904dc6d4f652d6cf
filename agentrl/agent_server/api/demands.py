"""What a client demands of an answer beside the conversation: which calls it may or must make, and its text's shape.

A demand is told to the model in words and the answer is held against it. Nothing forces the tokens: a grammar would
make the sampler another distribution than the one whose logprobs are trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentrl.types import Action, Message, ToolCall

__all__ = ["Demands", "with_words"]


@dataclass(frozen=True, slots=True)
class Demands:
    """``tool_choice``, ``parallel_tool_calls`` and ``response_format``, in one form for both APIs.

    Args:
        calls: whether the answer may make a call, must make none, or must make one.
        allowed: the only tools that it may call; empty for all that are on offer.
        one_call: it makes one call at most.
        schema: the JSON Schema of its text, as JSON; empty for free text.
        meant: what the client says of that text.
    """

    calls: Literal["auto", "none", "required"] = "auto"
    allowed: tuple[str, ...] = ()
    one_call: bool = False
    schema: str = ""
    meant: str = ""

    @property
    def limits_calls(self) -> bool:
        """Whether calls that the model made may be kept from the client."""
        return self.one_call or self.calls == "none"

    def words(self, said: Demands) -> str:
        """What the model is told, where its conversation has been told ``said``; empty where that still holds."""
        sentences = []
        if (self.calls, self.allowed) != (said.calls, said.allowed):
            sentences.append(self._words_of_calls())
        if self.one_call != said.one_call:
            sentences.append(
                "Make one tool call at a time."
                if self.one_call
                else "You may make several calls at once."
            )
        if (self.schema, self.meant) != (said.schema, said.meant):
            meant = f" ({self.meant})" if self.meant else ""
            fits = (
                f"Your answer must be JSON alone that fits this JSON Schema{meant}: {self.schema}"
            )
            sentences.append(fits if self.schema else "Your answer may be free text.")
        return " ".join(sentences)

    def _words_of_calls(self) -> str:
        if self.calls == "none":
            return "Answer without calling a tool."
        some = (
            f"the tool {self.allowed[0]}"
            if len(self.allowed) == 1
            else f"one of the tools {', '.join(self.allowed)}"
        )
        if self.calls == "required":
            return f"Call {some if self.allowed else 'a tool'}."
        return f"You may call {some if self.allowed else 'a tool'}, or answer."

    def breaches(self, action: Action, offered: Sequence[str]) -> tuple[str, ...]:
        """How an answer's calls break the demands: a phrase a breach; its text is ``schema_fault``'s matter.

        Args:
            action: what the model did.
            offered: the names of the tools on offer.
        """
        names, found = [call.name for call in action.tool_calls], []
        if self.calls == "none" and names:
            found.append(f"tool_choice is none, called {', '.join(names)}")
        if self.calls == "required" and not names:
            found.append("tool_choice is required, called no tool")
        if self.one_call and len(names) > 1:
            found.append(f"parallel_tool_calls is false, made {len(names)} calls")
        wrong = [name for name in names if name not in (self.allowed or offered)]
        if wrong and self.calls != "none":
            found.append(f"called {', '.join(wrong)}, which may not be called")
        return tuple(found)

    def told(self, action: Action, as_text: Message) -> tuple[Message, tuple[ToolCall, ...]]:
        """What the client is told of an answer, and the calls that are kept from it.

        Args:
            action: what the model did.
            as_text: its message with all calls left as text, for a client that wants none.
        """
        calls = action.tool_calls
        if self.calls == "none" and calls:
            return as_text, calls
        if self.one_call and len(calls) > 1:
            message = action.message.copy()
            message["tool_calls"] = [calls[0].openai()]
            return message, calls[1:]
        return action.message, ()


def with_words(messages: Sequence[Message], words: str) -> tuple[Message, ...]:
    """Messages with words at the end of the last one's text: there is no template that cannot write them there."""
    if not words:
        return tuple(messages)
    last = messages[-1].copy()
    content: Any = last["content"]
    last["content"] = (
        [*content, {"type": "text", "text": words}]
        if isinstance(content, list)
        else _below(content, words)
    )
    return (*messages[:-1], last)


def _below(text: str, words: str) -> str:
    return f"{text}\n\n{words}" if text else words
