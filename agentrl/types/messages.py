"""Messages in the OpenAI chat shape, tool calls, and what came of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Required, TypedDict

from agentrl.types.image import Image

__all__ = [
    "CallProblem",
    "CallRecord",
    "Message",
    "ParsedMessage",
    "ProblemKind",
    "ToolCall",
    "ToolErrorKind",
    "ToolResult",
    "ToolSpec",
]

ProblemKind = Literal[
    "malformed_json", "missing_name", "bad_arguments", "unclosed", "second_call", "too_many"
]
ToolErrorKind = Literal[
    "malformed", "unknown_tool", "invalid_arguments", "timeout", "exception", "output_limit"
]


class Message(TypedDict, total=False):
    """One chat message. ``content`` is text, or parts of text and images (``agentrl.types.content``).

    ``tool_calls`` entries are ``{"id", "type": "function", "function": {"name",
    "arguments"}}`` with ``arguments`` a mapping; a ``tool`` message names its ``tool_call_id``."""

    role: Required[Literal["system", "user", "assistant", "tool"]]
    content: Required[Any]
    reasoning_content: str
    tool_calls: list[dict[str, Any]]
    tool_call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What the model is told of a tool: name, description, and ``parameters`` as a JSON Schema object."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def openai(self) -> dict[str, Any]:
        """The OpenAI shape: ``{"type": "function", "function": {"name", "description", "parameters"}}``."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": dict(self.parameters),
            },
        }


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A well-formed call that the model made; whether the tool exists and the arguments fit is the executor's."""

    id: str
    name: str
    arguments: Mapping[str, Any]

    def openai(self) -> dict[str, Any]:
        """The call as an entry of a message's ``tool_calls``."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": dict(self.arguments)},
        }


@dataclass(frozen=True, slots=True)
class CallProblem:
    """A call that could not be read. It is answered with a mend, counted by kind, and never dropped.

    Args:
        id: the call's id, in the same sequence as the well-formed calls of its turn.
        kind: what is wrong.
        detail: what to mend, in words for the model.
        raw: the text as the model wrote it; empty where the problem stands for several calls.
        count: calls that the problem stands for.
    """

    id: str
    kind: ProblemKind
    detail: str
    raw: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class ParsedMessage:
    """A completion read as an assistant's message; calls and problems in the order written."""

    message: Message
    tool_calls: tuple[ToolCall, ...]
    problems: tuple[CallProblem, ...]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What goes back to the model for one call, or one problem.

    Args:
        call_id: the call's or the problem's id.
        name: the tool's name as the model wrote it; empty where it could not be read.
        content: the text for the model; for an error, what to mend.
        error: None for success.
        latency_s: seconds from the call to the result.
        truncated: the output was cut to the tool's limit, with a visible marker.
        metrics: numbers about the call that are kept, such as ``cpu_s``.
        images: for the model, behind the text.
    """

    call_id: str
    name: str
    content: str
    error: ToolErrorKind | None = None
    latency_s: float = 0.0
    truncated: bool = False
    metrics: Mapping[str, float] | None = None
    images: tuple[Image, ...] = ()

    def message(self) -> Message:
        """The ``tool`` message that answers the call; its content is text where there are no images."""
        content: Any = self.content
        if self.images:
            text = [{"type": "text", "text": self.content}] if self.content else []
            content = [*text, *({"type": "image", "image": image} for image in self.images)]
        return {"role": "tool", "content": content, "tool_call_id": self.call_id, "name": self.name}


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call of a turn and its result, as stored; ``call`` is None where it could not be read."""

    call: ToolCall | None
    problem: CallProblem | None
    result: ToolResult | None
