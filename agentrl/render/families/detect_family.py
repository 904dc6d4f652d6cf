"""Family detection: finds the ChatML style of a model's template by rendering."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agentrl.errors import ConfigError, DataError
from agentrl.render.chat_template import ChatTemplate, check_same_ids
from agentrl.render.families.chatml import ChatMLRenderer, ChatMLStyle, chatml_pieces
from agentrl.render.families.probe_messages import TOOL
from agentrl.types import Image, Message, ToolCall, ToolSpec

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


# Every role, with and without tools and system; several calls and responses; kept and dropped
# reasoning.
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


def detect_chatml(
    tokenizer: Any, template: str, enable_thinking: bool | None, where: str, *, images: bool = False
) -> ChatMLStyle:
    """The style that renders as ``template`` does.

    Args:
        tokenizer: its ``apply_chat_template`` renders.
        template: the Jinja text.
        enable_thinking: the template's own switch of that name, if not None.
        where: the owner of the template, for messages.
        images: whether it must also write images as the family does.

    Raises:
        ConfigError: the template is not of the family; names the first difference.
    """
    variables = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
    chat = ChatTemplate(tokenizer, template, where, variables)

    def rendered(messages: Sequence[Message], tools: Sequence[ToolSpec], generation: bool) -> str:
        try:
            return chat.render(messages, [tool.openai() for tool in tools], generation=generation)
        except DataError as error:  # a fault of the template, or one that it raises on purpose
            raise ConfigError(
                f"{error}; fix it, or set RendererSpec.chat_template: chatml to train with the "
                "plain ChatML format instead"
            ) from error

    opening = rendered(*_PROBES[0], True)
    match = _FIRST_TURN.fullmatch(opening)
    if match is None:
        raise ConfigError(
            f"the chat template of {where} is not of the ChatML family (<|im_start|>role ... "
            f"<|im_end|>): a user's Hello renders as {opening[:200]!r}; choose a model of that "
            f"family, or set RendererSpec.chat_template: chatml"
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
        f"the chat template of {where} is not one that agentrl can render: after {agreed} "
        f"characters of a test conversation it writes {theirs!r} where the nearest known style "
        f"writes {ours!r}; set RendererSpec.chat_template: chatml to train with the plain ChatML "
        "format instead"
    )


def check_ids(tokenizer: Any, renderer: ChatMLRenderer, where: str) -> None:
    """Checks on the test conversations that renderer and tokenizer give the same ids.

    Raises:
        DataError: they differ, as for a tokenizer whose added tokens absorb the white space around
            them.
    """
    for messages, tools in _PROBES:
        (segment,) = renderer.prompt(messages, tools)
        text = (
            _text_of(messages, tools, renderer.style)
            + f"<|im_start|>assistant\n{renderer.style.generation_prefix}"
        )
        check_same_ids(tokenizer, where, segment.token_ids.tolist(), text)


def _text_of(messages: Sequence[Message], tools: Sequence[ToolSpec], style: ChatMLStyle) -> str:
    return "".join(piece.text for piece in chatml_pieces(messages, tools, style))


def _difference(theirs: str, ours: str) -> tuple[int, str, str]:
    pairs = enumerate(zip(theirs, ours, strict=False))
    agreed = next((index for index, (a, b) in pairs if a != b), min(len(theirs), len(ours)))
    return agreed, theirs[agreed : agreed + 60], ours[agreed : agreed + 60]
