"""ChatML family: the format of Qwen's models, with Hermes tool calls and grouped tool responses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.errors import DataError
from agentrl.guards.secret_mask import beginning
from agentrl.render.encode import Piece, Source, unmarked
from agentrl.render.renderer import Renderer, call_arguments, text_content
from agentrl.render.vision import IMAGE_TEXT, Vision
from agentrl.types import Image, Message, Segment, SegmentKind, ToolSpec
from agentrl.types.arrays import I32
from agentrl.types.messages import THOUGHTS_CLOSE, split_as_template

TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
DOCUMENT_END = "<|endoftext|>"
ASSISTANT_MARKERS = ("<tool_call>", "</tool_call>", "<think>", "</think>")

TOOLS_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
TOOLS_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)
RESPONSE_HEAD = "\n<tool_response>\n"
RESPONSE_TAIL = "\n</tool_response>"
RESPONSES_HEAD = f"{TURN_START}user{RESPONSE_HEAD}"
RESPONSES_TAIL = f"{RESPONSE_TAIL}{TURN_END}\n"

# The plain format, `ChatMLStyle()`, in Jinja, for models that are built here; RendererSpec.build
# checks that the two agree on each model.
CHATML_TEMPLATE = (
    r"""
{%- macro said(content) %}
    {%- if content is string or not content %}{{- content or '' }}{%- else %}
        {%- for part in content %}{{- part.text if 'text' in part else 'IMAGE_TEXT' }}{%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- set has_system = messages[0].role == 'system' %}
{%- if has_system or tools %}
    {{- '<|im_start|>system\n' + (said(messages[0].content) if has_system else '') }}
    {%- if tools %}
        {{- ('\n\n' if has_system else '') + TOOLS_HEAD }}
        {%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}
        {{- TOOLS_TAIL }}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in (messages[1:] if has_system else messages) %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + said(message.content) + '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + said(message.content) }}
        {%- for call in message.tool_calls or [] %}
            {%- set function = call.function or call %}
            {{- '\n' if message.content or not loop.first else '' }}
            {{- '<tool_call>\n{"name": "' + function.name + '", "arguments": ' }}
            {{- (function.arguments | tojson) + '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""[1:-1]
    .replace("TOOLS_HEAD", repr(TOOLS_HEAD))
    .replace("TOOLS_TAIL", repr(TOOLS_TAIL))
    .replace("IMAGE_TEXT", IMAGE_TEXT)
)

_TEMPLATE = Source.TEMPLATE
_ASSISTANT = Source.ASSISTANT
_CONTENT = Source.CONTENT

_json = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class ChatMLStyle:
    """The differences between templates of the family.

    Args:
        default_system: the system message of a conversation without one (Qwen2.5); None for no
            system turn.
        thinking: whether an assistant's reasoning is a ``<think>`` block (Qwen3). The block is
            dropped from turns before the last real user turn, and if it is empty.
        generation_prefix: the template's text after ``assistant\\n``: empty, or Qwen3's empty
            reasoning block if thinking is off.
    """

    default_system: str | None = None
    thinking: bool = False
    generation_prefix: str = ""

    @property
    def generation(self) -> Piece:
        """The beginning of the assistant's next turn."""
        return Piece(f"{TURN_START}assistant\n{self.generation_prefix}", _TEMPLATE)


class ChatMLRenderer(Renderer):
    """A ``Renderer`` for one tokenizer and style.

    Args:
        tokenizer: a fast Hugging Face tokenizer with ``<|im_start|>`` and ``<|im_end|>`` among its
            added tokens.
        style: the template's variant.
        vision: the model's image format; None for a model of text alone.

    Raises:
        DataError: a marker is missing, or the tokenizer is of an unsupported kind.
    """

    family = "chatml"

    def __init__(
        self, tokenizer: Any, style: ChatMLStyle, vision: Vision | None = None
    ) -> None:
        super().__init__(tokenizer, ASSISTANT_MARKERS, vision)
        self.style = style
        added = self._encoder.added_ids
        if missing := [marker for marker in (TURN_START, TURN_END) if marker not in added]:
            raise DataError(
                f"the ChatML family needs {' and '.join(missing)} among the tokenizer's added "
                f"tokens, and {tokenizer.name_or_path} has {', '.join(added) or 'none'}; add them "
                "to the tokenizer and resize the model's embeddings, or use a model that has them"
            )
        # base models end with <|endoftext|>
        self.stop_token_ids = tuple(
            added[end] for end in (TURN_END, DOCUMENT_END) if end in added
        )

    def extend(
        self,
        completion: I32,
        messages: Sequence[Message],
        history: Sequence[Message] = (),
        tools: Sequence[ToolSpec] = (),
    ) -> tuple[Segment, ...] | None:
        """See ``Renderer.extend``; in this family the new tokens do not depend on the history.

        With ``style.thinking``, None if the template would drop earlier reasoning: a user's message
        follows, or the turn's reasoning block is empty.
        """
        if self.style.thinking and self._rewrites(completion, messages):
            return None
        ended = (
            completion.size > 0 and int(completion[-1]) == self._encoder.added_ids[TURN_END]
        )
        end = Piece("\n" if ended else f"{TURN_END}\n", _TEMPLATE)
        pieces = [end, *_turns(messages, self.style), self.style.generation]
        return self._context(self._encoder.encode(pieces), messages)

    def target(self, message: Message) -> Segment:
        """See ``Renderer.target``; text that the generation prompt holds already is left out.

        Raises:
            DataError: the turn cannot follow the generation prompt, such as reasoning while
                thinking is off.
        """
        thinking = self.style.thinking
        body = list(_assistant_body(message, thinking=thinking, think=thinking))
        body = _after_prefix(self.style.generation_prefix, body)
        ids, _ = self._encoder.encode([*body, Piece(TURN_END, _TEMPLATE)])
        return Segment(SegmentKind.TARGET, ids)

    def _prompt_pieces(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Iterable[Piece]:
        return (*chatml_pieces(messages, tools, self.style), self.style.generation)

    def _rewrites(self, completion: I32, messages: Sequence[Message]) -> bool:
        if any(message["role"] != "tool" for message in messages):
            return True
        turn = self.style.generation_prefix + self.decode(completion)
        return THOUGHTS_CLOSE in turn and not split_as_template(turn)[0]


def chatml_pieces(
    messages: Sequence[Message], tools: Sequence[ToolSpec], style: ChatMLStyle
) -> Iterator[Piece]:
    """The conversation as the template renders it, without the generation prompt."""
    system: list[Piece] = []
    if messages and messages[0]["role"] == "system":
        system = [*_content(messages[0])]
        messages = messages[1:]
    elif style.default_system is not None:
        system = [Piece(style.default_system, _CONTENT)]
    if system or tools:
        yield Piece(f"{TURN_START}system\n", _TEMPLATE)
        yield from system
        if tools:
            yield Piece(f"\n\n{TOOLS_HEAD}" if system else TOOLS_HEAD, _TEMPLATE)
            for tool in tools:
                yield Piece("\n", _TEMPLATE)
                yield Piece(_json(tool.openai()), _CONTENT)
            yield Piece(TOOLS_TAIL, _TEMPLATE)
        yield Piece(f"{TURN_END}\n", _TEMPLATE)
    yield from _turns(messages, style)


def _turns(messages: Sequence[Message], style: ChatMLStyle) -> Iterator[Piece]:
    last_query = _last_query(messages)
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "tool":
            first = index == 0 or messages[index - 1]["role"] != "tool"
            yield Piece(RESPONSES_HEAD if first else RESPONSE_HEAD, _TEMPLATE)
            yield from _content(message)
            last = index + 1 == len(messages) or messages[index + 1]["role"] != "tool"
            yield Piece(RESPONSES_TAIL if last else RESPONSE_TAIL, _TEMPLATE)
            continue
        yield Piece(f"{TURN_START}{role}\n", _TEMPLATE)
        if role == "assistant":
            think = index > last_query and (
                index == len(messages) - 1 or bool(_thinking_of(message)[0])
            )
            yield from _assistant_body(message, thinking=style.thinking, think=think)
        else:
            yield from _content(message)
        yield Piece(f"{TURN_END}\n", _TEMPLATE)


def _last_query(messages: Sequence[Message]) -> int:
    """The index of the last user turn that is no tool response; that of the last message if there
    is none.
    """
    for index in reversed(range(len(messages))):
        if messages[index]["role"] == "user":
            content = "".join(piece.text for piece in _content(messages[index]))
            if not (
                content.startswith("<tool_response>")
                and content.endswith("</tool_response>")
            ):
                return index
    return len(messages) - 1


def _assistant_body(message: Message, *, thinking: bool, think: bool) -> Iterator[Piece]:
    """An assistant's turn without its end; ``think`` writes the reasoning block of a style with
    ``thinking``.
    """
    content = text_content(message)
    if thinking:
        reasoning, content = _thinking_of(message)
        if think:
            yield Piece("<think>\n", _TEMPLATE)
            yield Piece(reasoning.strip("\n"), _ASSISTANT)
            yield Piece("\n</think>\n\n", _TEMPLATE)
            content = content.lstrip("\n")
    yield Piece(content, _ASSISTANT)
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call.get("function", call)
        arguments = _json(call_arguments(function))
        yield Piece("\n<tool_call>\n" if content or index else "<tool_call>\n", _TEMPLATE)
        yield Piece(
            f'{{"name": "{function["name"]}", "arguments": {arguments}}}', _ASSISTANT
        )
        yield Piece("\n</tool_call>", _TEMPLATE)


def _thinking_of(message: Message) -> tuple[str, str]:
    """An assistant's reasoning and content, from its own field or from a block in the content."""
    content = text_content(message)
    reasoning = message.get("reasoning_content")
    return (
        (reasoning, content) if isinstance(reasoning, str) else split_as_template(content)
    )


def _after_prefix(prefix: str, body: Sequence[Piece]) -> list[Piece]:
    """``body`` without its first characters, which must be ``prefix``."""
    text = unmarked(body)
    if not text.startswith(prefix[: len(text)]):
        raise DataError(
            f"the generation prompt has already written {prefix!r} of the assistant's turn, which "
            f"the message to imitate does not begin with: {beginning(text, 80)!r}; drop its "
            "reasoning, or switch thinking on"
        )
    skip = len(prefix)
    rest = []
    for piece in body:
        rest.append(Piece(piece.text[skip:], piece.source))
        skip = max(0, skip - len(piece.text))
    return rest


def _content(message: Message) -> Iterator[Piece]:
    """The text of any role but the assistant, with the images in it."""
    if not isinstance(content := message.get("content"), list):
        yield Piece(text_content(message), _CONTENT)
        return
    for part in content:
        if isinstance(part.get("image"), Image):
            yield Piece(IMAGE_TEXT, _TEMPLATE)
        else:
            text = text_content(
                {"role": message["role"], "content": part.get("text", part)}
            )
            yield Piece(text, _CONTENT)
