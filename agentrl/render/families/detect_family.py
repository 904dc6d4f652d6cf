"""Which style of the ChatML family a model's own chat template is: found by rendering with it, never by its name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agentrl.errors import ConfigError, DataError
from agentrl.render.chat_template import ChatTemplate
from agentrl.render.families.chatml import ChatMLRenderer, ChatMLStyle, chatml_pieces
from agentrl.render.families.probe_messages import TOOL
from agentrl.types import Image, Message, ToolCall, ToolSpec

__all__ = ["check_ids", "recognise_chatml"]

_FIRST_TURN = re.compile(
    r"(?:<\|im_start\|>system\n(?P<system>.*)<\|im_end\|>\n)?"
    r"<\|im_start\|>user\nHello<\|im_end\|>\n<\|im_start\|>assistant\n(?P<prefix>.*)",
    re.DOTALL,
)


def _said(role: Any, content: str) -> Message:
    return {"role": role, "content": content}


def _called(content: str, reasoning: str | None, *words: str) -> Message:
    calls = [
        ToolCall(f"call_{index}", "lookup", {"word": word}).openai()
        for index, word in enumerate(words)
    ]
    message: Message = {"role": "assistant", "content": content, "tool_calls": calls}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    return message


# Between them: every role, with and without tools and system, several calls and responses, thinking kept and dropped.
_PROBES: tuple[tuple[tuple[Message, ...], tuple[ToolSpec, ...]], ...] = (
    ((_said("user", "Hello"),), ()),
    (
        (
            _said("system", "Be brief."),
            _said("user", "Hello"),
            _said("assistant", "Hi"),
            _said("user", "Bye"),
        ),
        (),
    ),
    ((_said("user", "Hello"),), (TOOL,)),
    (
        (
            _said("system", "Be brief."),
            _said("user", "Two words?"),
            _called("", None, "naïve", "b"),
            _said("tool", "1\n"),
            _said("tool", "\n2"),
            _called("One more.", "I need\nanother.", "c"),
            _said("tool", "3"),
        ),
        (TOOL,),
    ),
    (
        (
            _said("user", "A word?"),
            _called("", "I look it up.", "a"),
            _said("tool", "1"),
            _said("assistant", "<think>\nDone.\n</think>\n\nIt is 1."),
            _said("user", "Thanks"),
        ),
        (TOOL,),
    ),
)


_PICTURE = {"type": "image", "image": Image("0" * 64, "image/png", 28, 28, 0)}
_IMAGE_PROBES: tuple[tuple[tuple[Message, ...], tuple[ToolSpec, ...]], ...] = (
    (
        (
            {
                "role": "user",
                "content": [_PICTURE, {"type": "text", "text": "Which word?"}, _PICTURE],
            },
            _called("", None, "a"),
            {"role": "tool", "content": [{"type": "text", "text": "This one:"}, _PICTURE]},
        ),
        (TOOL,),
    ),
)


def recognise_chatml(
    tokenizer: Any, template: str, enable_thinking: bool | None, where: str, *, images: bool = False
) -> ChatMLStyle:
    """The style that renders as ``template`` does.

    Args:
        tokenizer: whose ``apply_chat_template`` renders.
        template: the Jinja text.
        enable_thinking: given to the template where not None, as its own switch of that name.
        where: what the template belongs to, for messages.
        images: whether it must also write images as the family does.

    Raises:
        ConfigError: the template is not of the family; says where it departs from it.
    """
    variables = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
    chat = ChatTemplate(tokenizer, template, where, variables)

    def rendered(messages: Sequence[Message], tools: Sequence[ToolSpec], generation: bool) -> str:
        try:
            return chat.render(messages, [tool.openai() for tool in tools], generation=generation)
        except DataError as error:  # a fault of the template, or one that it raises on purpose
            raise ConfigError(
                f"{error}; mend it, or set RendererSpec.chat_template: chatml to train with the plain ChatML format instead"
            ) from error

    opening = rendered(*_PROBES[0], True)
    match = _FIRST_TURN.fullmatch(opening)
    if match is None:
        raise ConfigError(
            f"the chat template of {where} is not of the ChatML family (<|im_start|>role ... <|im_end|>): a user's "
            f"Hello renders as {opening[:200]!r}; choose a model of that family, or set RendererSpec.chat_template: chatml"
        )
    differences = []
    for thinking in (False, True):
        style = ChatMLStyle(match["system"], thinking, match["prefix"])
        difference = next(
            (
                _difference(theirs, ours)
                for messages, tools in (*_PROBES, *(_IMAGE_PROBES if images else ()))
                if (theirs := rendered(messages, tools, False))
                != (ours := _text_of(messages, tools, style))
            ),
            None,
        )
        if difference is None:
            return style
        differences.append(difference)
    agreed, theirs, ours = max(differences)
    raise ConfigError(
        f"the chat template of {where} is not one that agentrl can render: after {agreed} characters of a test "
        f"conversation it writes {theirs!r} where the nearest known style writes {ours!r}; set RendererSpec.chat_template: "
        "chatml to train with the plain ChatML format instead"
    )


def check_ids(tokenizer: Any, renderer: ChatMLRenderer, where: str) -> None:
    """Prove on the test conversations that the renderer gives the ids that the tokenizer gives for the whole text.

    Raises:
        DataError: they differ, as for a tokenizer whose added tokens swallow the white space around them.
    """
    for messages, tools in _PROBES:
        (segment,) = renderer.prompt(messages, tools)
        text = (
            _text_of(messages, tools, renderer.style)
            + f"<|im_start|>assistant\n{renderer.style.generation_prefix}"
        )
        theirs = tokenizer.encode(text, add_special_tokens=False)
        if segment.token_ids.tolist() != theirs:
            raise DataError(
                f"the tokenizer of {where} encodes a test conversation otherwise than agentrl does: {theirs[:40]} "
                f"against {segment.token_ids[:40].tolist()}; its added tokens may strip white space or be normalized, "
                "which is not supported: use the model's plain tokenizer"
            )


def _text_of(messages: Sequence[Message], tools: Sequence[ToolSpec], style: ChatMLStyle) -> str:
    return "".join(piece.text for piece in chatml_pieces(messages, tools, style))


def _difference(theirs: str, ours: str) -> tuple[int, str, str]:
    pairs = enumerate(zip(theirs, ours, strict=False))
    agreed = next((index for index, (a, b) in pairs if a != b), min(len(theirs), len(ours)))
    return agreed, theirs[agreed : agreed + 60], ours[agreed : agreed + 60]
