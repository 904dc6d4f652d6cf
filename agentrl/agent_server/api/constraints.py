"""Answer constraints: a client's rules for the calls and the text of an answer.

- The model is told a constraint in words, and its answer is checked afterwards.
- Nothing forces the tokens: a grammar would sample from another distribution than the one whose
  logprobs are trained.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentrl.agent_server.api.api_error import bad_request
from agentrl.guards.parsing import parse_json
from agentrl.guards.schema import SchemaFault, checked_schema
from agentrl.tools.threads import BoundedThreads
from agentrl.types import Action, Message, ToolCall
from agentrl.types.user_code.wall import DeadlineError

_DEADLINE_S = 10.0
# Threads for the checks of all episodes, called from their event loops; abandoned checks stay
# counted.
_CHECKS = BoundedThreads(2, "agentrl-answers")


@dataclass(frozen=True, slots=True)
class AnswerConstraints:
    """``tool_choice``, ``parallel_tool_calls`` and ``response_format``, in one form for both APIs.

    Args:
        calls: whether the answer may make a call, must make none, or must make one.
        allowed: the only tools that it may call; empty for all tools on offer.
        one_call: whether it may make one call at most.
        schema: the JSON Schema of its text, as JSON; empty for free text.
        description: the client's description of that text.
    """

    calls: Literal["auto", "none", "required"] = "auto"
    allowed: tuple[str, ...] = ()
    one_call: bool = False
    schema: str = ""
    description: str = ""

    @property
    def may_hide_calls(self) -> bool:
        """Whether the client may not get all calls that the model made."""
        return self.one_call or self.calls == "none"

    def instruction(self, earlier: AnswerConstraints) -> str:
        """The text that tells the model these constraints.

        Args:
            earlier: the constraints that the conversation states already; what they share is left
                out.
        """
        sentences = []
        if (self.calls, self.allowed) != (earlier.calls, earlier.allowed):
            sentences.append(self._call_instruction())
        if self.one_call != earlier.one_call:
            sentences.append(
                "Make one tool call at a time."
                if self.one_call
                else "You may make several calls at once."
            )
        if (self.schema, self.description) != (earlier.schema, earlier.description):
            described = f" ({self.description})" if self.description else ""
            sentences.append(
                f"Your answer must be JSON alone that fits this JSON Schema{described}: "
                f"{self.schema}"
                if self.schema
                else "Your answer may be free text."
            )
        return " ".join(sentences)

    def _call_instruction(self) -> str:
        if self.calls == "none":
            return "Answer without calling a tool."
        tool = "a tool"
        if len(self.allowed) == 1:
            tool = f"the tool {self.allowed[0]}"
        elif self.allowed:
            tool = f"one of the tools {', '.join(self.allowed)}"
        return (
            f"Call {tool}."
            if self.calls == "required"
            else f"You may call {tool}, or answer."
        )

    def violations(self, action: Action, offered: Sequence[str]) -> list[str]:
        """The constraints that an answer's calls violate; ``schema_fault`` checks its text.

        Args:
            action: the model's action.
            offered: the names of the tools on offer.
        """
        names = [call.name for call in action.tool_calls]
        found = []
        if self.calls == "none" and names:
            found.append(f"tool_choice is none, called {', '.join(names)}")
        if self.calls == "required" and not names:
            found.append("tool_choice is required, called no tool")
        if self.one_call and len(names) > 1:
            found.append(f"parallel_tool_calls is false, made {len(names)} calls")
        wrong = [name for name in names if name not in (self.allowed or offered)]
        if wrong and self.calls != "none":
            found.append(f"called {', '.join(wrong)}, which may not be called")
        return found

    def visible(
        self, action: Action, as_text: Message
    ) -> tuple[Message, tuple[ToolCall, ...]]:
        """The message that the client gets, and the calls that are hidden from it.

        Args:
            action: the model's action.
            as_text: its message with all calls as text, for a client that allows none.
        """
        calls = action.tool_calls
        if self.calls == "none" and calls:
            return as_text, calls
        if self.one_call and len(calls) > 1:
            message = action.message.copy()
            message["tool_calls"] = [calls[0].openai()]
            return message, calls[1:]
        return action.message, ()


def with_instruction(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """Messages with ``text`` at the end of the last one, where every template can write it."""
    if not text:
        return tuple(messages)
    last = messages[-1].copy()
    content: Any = last["content"]
    if isinstance(content, list):
        last["content"] = [*content, {"type": "text", "text": text}]
    else:
        last["content"] = f"{content}\n\n{text}" if content else text
    return (*messages[:-1], last)


def schema_text(schema: Mapping[str, Any]) -> str:
    """A schema as JSON.

    Raises:
        PolicyApiError: it is no JSON Schema (Draft 2020-12).
    """
    try:
        text = json.dumps(schema, ensure_ascii=False)
        checked_schema(text)
    except (SchemaFault, RecursionError) as fault:
        raise bad_request(f"the schema of the answer {fault}") from None
    return text


async def schema_fault(schema: str, text: str) -> str:
    """The first rule that a text violates, or nothing; runs in a thread, as both may be large."""
    try:
        return await _CHECKS.run(lambda: _fault(schema, text), deadline_s=_DEADLINE_S)
    except DeadlineError:
        return f"the text cannot be checked within {_DEADLINE_S:g} s"


def _fault(schema: str, text: str) -> str:
    try:
        value = parse_json(text)
    except ValueError as broken:
        return f"the text is no JSON ({broken})"
    try:
        rules = checked_schema(schema).broken(value)
    except SchemaFault as fault:
        return f"the schema {fault}"
    except ValueError as error:
        return f"the text cannot be checked: {error}"
    if not rules:
        return ""
    first = rules[0]
    return (
        first.message
        if first.is_slow
        else f"{first.json_path} breaks the rule {first.keyword}"
    )
