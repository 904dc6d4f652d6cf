"""Messages: chat messages in OpenAI's shape, their content, thoughts, tool calls and results.

- Parts are ``{"type": "text", "text": ...}`` and ``{"type": "image", "image": ...}``.
- An image may be given in many forms (``Image.read``), and in OpenAI's shape, ``{"type":
  "image_url", "image_url": {"url": ...}}``.
- ``with_images`` converts each to an ``Image``; renderer, engine and store see nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Required, TypedDict

from agentrl.errors import DataError
from agentrl.types.blob import Image

ProblemKind = Literal[
    "malformed_json", "missing_name", "bad_arguments", "unclosed", "second_call", "too_many"
]
ToolErrorKind = Literal[
    "malformed",
    "unknown_tool",
    "invalid_arguments",
    "timeout",
    "exception",
    "output_limit",
    "call_limit",
]


_ROLES = ("system", "user", "assistant", "tool")
IMAGE_PARTS = ("image", "image_url")
"""The types of a part that holds an image."""


class Message(TypedDict, total=False):
    """One chat message.

    ``content`` is text, or parts of text and images (``agentrl.types.messages``). ``tool_calls``
    entries are ``{"id", "type": "function", "function": {"name", "arguments"}}`` with ``arguments``
    a mapping. A ``tool`` message names its ``tool_call_id``.
    """

    role: Required[Literal["system", "user", "assistant", "tool"]]
    content: Required[Any]
    reasoning_content: str
    tool_calls: list[dict[str, Any]]
    tool_call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool's description for the model; ``parameters`` is a JSON Schema object."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def openai(self) -> dict[str, Any]:
        """The tool in OpenAI's shape, of type ``function``."""
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
    """A well-formed call by the model; the executor checks that the tool exists and its arguments
    fit.
    """

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
    """A call that could not be parsed; it is answered with a correction, counted by kind, never
    dropped.

    Args:
        id: the call's id, in the same sequence as the well-formed calls of its turn.
        kind: the kind of fault.
        detail: the correction, in words for the model.
        raw: the model's text; empty if the problem stands for several calls.
        count: the number of calls that the problem stands for.
    """

    id: str
    kind: ProblemKind
    detail: str
    raw: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class ParsedMessage:
    """A completion parsed to an assistant's message; calls and problems are in the order
    written.

    Args:
        message: with its calls, as a chat template takes it.
        tool_calls: what can be run.
        problems: what looks like a call and is none.
        spans: by id, the characters of the completion from where to where a call or problem stands;
            none where a server read the calls.
    """

    message: Message
    tool_calls: tuple[ToolCall, ...]
    problems: tuple[CallProblem, ...]
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The model's answer to one call or one problem.

    Args:
        call_id: the call's or the problem's id.
        name: the tool's name as the model wrote it; empty if it could not be parsed.
        content: the text for the model; for an error, the correction.
        error: None for success.
        latency_s: seconds from the call to the result.
        truncated: the output was cut to the tool's limit, with a visible marker.
        metrics: numbers that are stored with the call, such as ``cpu_s``.
        images: images for the model, after the text.
        started_at: when the call began, in seconds since the epoch; 0 where unknown.
        reward: the call's part of the step's reward.
        end: the call ended the episode.
    """

    call_id: str
    name: str
    content: str
    error: ToolErrorKind | None = None
    latency_s: float = 0.0
    truncated: bool = False
    metrics: Mapping[str, float] | None = None
    images: tuple[Image, ...] = ()
    started_at: float = 0.0
    reward: float = 0.0
    end: bool = False

    def message(self) -> Message:
        """The ``tool`` message that answers the call; its content is text unless there are
        images.
        """
        content: Any = self.content
        if self.images:
            text = [{"type": "text", "text": self.content}] if self.content else []
            content = [*text, *({"type": "image", "image": image} for image in self.images)]
        return {
            "role": "tool",
            "content": content,
            "tool_call_id": self.call_id,
            "name": self.name,
        }


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call of a turn and its result, as stored; ``call`` is None if it could not be parsed."""

    call: ToolCall | None
    problem: CallProblem | None
    result: ToolResult | None

    @property
    def is_known(self) -> bool:
        """Whether anybody knows what became of it: an agent's last call may end its episode."""
        return self.result is not None or self.problem is not None

    @property
    def error(self) -> ToolErrorKind | None:
        """How it failed; None where it did not, or where nobody knows."""
        if self.result is not None:
            return self.result.error
        return None if self.problem is None else "malformed"


THOUGHTS_OPEN = "<think>"
THOUGHTS_CLOSE = "</think>"
_THOUGHTS = re.compile(r"<think>.*?(?:</think>|\Z)|\A.*</think>", re.DOTALL)


def opened_thoughts(prompt_end: str) -> str:
    """``<think>`` where the end of a prompt opens a block, so that a completion begins within it;
    else nothing.
    """
    return THOUGHTS_OPEN if prompt_end.rstrip().endswith(THOUGHTS_OPEN) else ""


def split_reasoning(text: str, *, before: str | None = None) -> tuple[str | None, str]:
    """The leading ``<think>`` block and the rest.

    The opening tag may be missing, because some templates end the prompt with it. A block that is
    never closed takes the rest of the text.

    Args:
        text: a completion.
        before: without an opening tag, a closing one counts only in front of the first of these.

    Returns:
        The thoughts without their tags, None where there are none; and what follows them.
    """
    stripped = text.lstrip()
    if stripped.startswith(THOUGHTS_OPEN):
        thoughts, _, rest = stripped.removeprefix(THOUGHTS_OPEN).partition(THOUGHTS_CLOSE)
        return thoughts.strip(), rest
    limit = text.find(before) if before is not None else -1
    end = text.find(THOUGHTS_CLOSE, 0, limit if limit >= 0 else len(text))
    if end < 0:
        return None, text
    return text[:end].strip(), text[end + len(THOUGHTS_CLOSE) :]


def split_as_template(text: str) -> tuple[str, str]:
    """Thoughts and content of a stored message, split exactly as Qwen3's chat template does."""
    if THOUGHTS_CLOSE not in text:
        return "", text
    before, *_, content = text.split(THOUGHTS_CLOSE)
    thoughts = before.rstrip("\n").split(THOUGHTS_OPEN)[-1].lstrip("\n")
    return thoughts, content.lstrip("\n")


def without_thoughts(text: str) -> str:
    """What a message says aloud: without blocks of ``<think>``, whether or not they were closed."""
    return _THOUGHTS.sub("", text).strip()


def message_faults(message: Any) -> Iterator[str]:
    """What is wrong with the role and the content of a message: the rule, after its place and
    before the value found.
    """
    if not isinstance(message, Mapping):
        yield 'must be a mapping such as {"role": "user", "content": "..."}'
        return
    if message.get("role") not in _ROLES:
        yield f"needs a role, one of {', '.join(_ROLES)}"
    content = message.get("content")
    if (
        not isinstance(content, str)
        and not is_parts(content)
        and not (content is None and message.get("tool_calls"))
    ):
        yield "needs a content that is a string, or a list of parts of text and images"


def is_parts(content: object) -> bool:
    """Whether a content is a list of parts; that their images can be read, ``with_images`` says."""
    return isinstance(content, list) and all(
        isinstance(part, Mapping)
        and (
            part.get("type") in IMAGE_PARTS
            or (part.get("type") == "text" and isinstance(part.get("text"), str))
        )
        for part in content
    )


def with_images(
    messages: Iterable[Message], named: Mapping[str, object] | None = None
) -> tuple[Message, ...]:
    """The messages with each content as text, or as parts whose images are ``Image`` objects.

    Args:
        messages: from an environment, a tool or a data set.
        named: images by the names that parts may use, ``{"type": "image", "image": NAME}``.

    Raises:
        DataError: a part of another type, an image that cannot be read, or one in an assistant's
            message.
    """
    return tuple(
        message
        if isinstance(content := message.get("content"), str | None)
        else _read_parts(message, content, named or {})
        for message in messages
    )


def images_in(messages: Iterable[Message]) -> Iterator[Image]:
    """The images of messages that ``with_images`` returned, in their order."""
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list | tuple) else ():
            if isinstance(part, Mapping) and isinstance(image := part.get("image"), Image):
                yield image


def content_text(content: object) -> str:
    """A content for a human reader: its text, with each image as one word in brackets."""
    if isinstance(content, str) or content is None:
        return content or ""
    return (
        "".join(map(_part_text, content))
        if isinstance(content, list | tuple)
        else str(content)
    )


def _part_text(part: object) -> str:
    if isinstance(part, Mapping) and isinstance(part.get("image"), Image):
        return f"[{part['image']}]"
    return str(part["text"]) if isinstance(part, Mapping) and "text" in part else str(part)


def _read_parts(message: Message, content: Any, named: Mapping[str, object]) -> Message:
    role = message["role"]
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise DataError(
            f"the content of a {role} message must be text or a list of parts, got "
            f"{type(content).__name__}"
        )
    parts: list[dict[str, Any]] = []
    for number, part in enumerate(content):
        where = f"part {number} of a {role} message"
        read = _read_part(part, where, named)
        if "image" in read and role == "assistant":
            raise DataError(
                f"{where} is an image, and what an assistant writes is text; give it to the "
                f"user's turn"
            )
        if parts and "text" in read and "text" in parts[-1]:
            read = {"type": "text", "text": parts.pop()["text"] + read["text"]}
        parts.append(read)
    if all("text" in part for part in parts):
        return {**message, "content": parts[0]["text"] if parts else ""}
    return {**message, "content": parts}


def _read_part(part: object, where: str, named: Mapping[str, object]) -> dict[str, Any]:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "image" | "image_url", **forms}:
            names = ("image", "image_url", "url", "path")
            given = next((forms[name] for name in names if forms.get(name)), None)
            if isinstance(given, str) and given in named:
                given = named[given]
            return {"type": "image", "image": Image.read(given, where)}
        case Mapping():
            found = f"type {part.get('type')!r}"
        case _:
            found = type(part).__name__
    raise DataError(
        f'{where} must be {{"type": "text", "text": ...}} or {{"type": "image", "image": ...}}, '
        f"got {found}; other kinds are not supported"
    )
