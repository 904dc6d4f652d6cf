"""Family detection: finds the ChatML style of a template, and verifies that it can be rendered."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from agentrl.errors import ConfigError, DataError
from agentrl.render.chat_template import ChatTemplate, check_same_ids, num_shared
from agentrl.render.encode import unmarked
from agentrl.render.families.chatml import ChatMLRenderer, ChatMLStyle, chatml_pieces
from agentrl.render.families.family import Family
from agentrl.render.families.probe_messages import ANSWER, CALL, QUESTION, TOOL
from agentrl.render.template_renderer import TemplateRenderer
from agentrl.render.vision import Vision
from agentrl.types import Image, Message, ToolCall, ToolSpec

_FIRST_TURN = re.compile(
    r"(?:<\|im_start\|>system\n(?P<system>.*)<\|im_end\|>\n)?"
    r"<\|im_start\|>user\nHello<\|im_end\|>\n<\|im_start\|>assistant\n(?P<prefix>.*)",
    re.DOTALL,
)
_Conversation: TypeAlias = tuple[Sequence[Message], Sequence[ToolSpec]]


def _said(role: Any, content: Any) -> Message:
    return {"role": role, "content": content}


def _called(content: str, *words: str, **reasoning: str) -> Any:
    calls = [
        ToolCall(f"call_{index}", "lookup", {"word": word}).openai()
        for index, word in enumerate(words)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls, **reasoning}


# Every role, with and without tools and system; several calls and responses; kept and dropped
# reasoning.
_FIRST: _Conversation = ([_said("user", "Hello")], ())
_PROBES: tuple[_Conversation, ...] = (
    _FIRST,
    (
        [
            _said("system", "Be brief."),
            _said("user", "Hello"),
            _said("assistant", "Hi"),
            _said("user", "Bye"),
        ],
        (),
    ),
    ([_said("user", "Hello")], [TOOL]),
    (
        [
            _said("system", "Be brief."),
            _said("user", "Two words?"),
            _called("", "naïve", "b"),
            _said("tool", "1\n"),
            _said("tool", "\n2"),
            _called("One more.", "c", reasoning_content="I need\nanother."),
            _said("tool", "3"),
        ],
        [TOOL],
    ),
    (
        [
            _said("user", "A word?"),
            _called("", "a", reasoning_content="I look it up."),
            _said("tool", "1"),
            _said("assistant", "<think>\nDone.\n</think>\n\nIt is 1."),
            _said("user", "Thanks"),
        ],
        [TOOL],
    ),
)
_PICTURE = {"type": "image", "image": Image("0" * 64, "image/png", 28, 28, 0)}
_PICTURES: _Conversation = (
    [
        _said("user", [_PICTURE, {"type": "text", "text": "Which word?"}, _PICTURE]),
        _called("", "a"),
        _said("tool", [{"type": "text", "text": "This one:"}, _PICTURE]),
    ],
    [TOOL],
)


def detect_chatml(template: ChatTemplate, *, images: bool = False) -> ChatMLStyle:
    """The style that renders as ``template`` does.

    Args:
        template: the model's.
        images: whether it must also write images as the family does.

    Raises:
        ConfigError: the template is not of the family; names the first difference.
    """

    def rendered(conversation: _Conversation, *, generation: bool = False) -> str:
        messages, tools = conversation
        try:
            described = [tool.openai() for tool in tools]
            return template.render(messages, described, generation=generation)
        except DataError as error:
            # The template has a fault, or raises one on purpose.
            raise ConfigError(
                f"{error}; fix it, or set RendererSpec.chat_template: chatml to train with the "
                "plain ChatML format instead"
            ) from error

    opening = rendered(_FIRST, generation=True)
    match = _FIRST_TURN.fullmatch(opening)
    if match is None:
        raise ConfigError(
            f"the chat template of {template.where} is not of the ChatML family (<|im_start|>role "
            f"... <|im_end|>): a user's Hello renders as {opening[:200]!r}; choose a model of that "
            f"family, or set RendererSpec.chat_template: chatml"
        )
    differences = []
    for thinking in (False, True):
        style = ChatMLStyle(match["system"], thinking, match["prefix"])
        for conversation in (*_PROBES, _PICTURES) if images else _PROBES:
            theirs = rendered(conversation)
            ours = _text_of(conversation, style)
            if theirs != ours:
                agreed = num_shared(theirs, ours)
                until = agreed + 60
                differences.append((agreed, theirs[agreed:until], ours[agreed:until]))
                break
        else:
            return style
    agreed, their_text, our_text = max(differences)
    raise ConfigError(
        f"the chat template of {template.where} is not one that agentrl can render: after {agreed} "
        f"characters of a test conversation it writes {their_text!r} where the nearest known style "
        f"writes {our_text!r}; set RendererSpec.chat_template: chatml to train with the plain "
        "ChatML format instead"
    )


def checked_chatml(
    tokenizer: Any, style: ChatMLStyle, where: str, vision: Vision | None
) -> ChatMLRenderer:
    """The renderer of a style, checked on the test conversations against the tokenizer's ids.

    Raises:
        DataError: they differ, as for a tokenizer whose added tokens absorb the white space around
            them, or the tokenizer cannot be used.
    """
    renderer = ChatMLRenderer(tokenizer, style, vision)
    for conversation in _PROBES:
        (prompt,) = renderer.prompt(*conversation)
        text = _text_of(conversation, style) + style.generation.text
        check_same_ids(tokenizer, where, prompt, text)
    return renderer


def _text_of(conversation: _Conversation, style: ChatMLStyle) -> str:
    return unmarked(chatml_pieces(*conversation, style))


_TIME_OF_DAY = re.compile(r"strftime_now\([^)]*%[-_0^#]?[HIMSTXRcfklprs][^)]*\)")

_Trial = tuple[tuple[Message, ...], tuple[ToolSpec, ...]]


def checked_renderer(
    template: ChatTemplate, family: Family, vision: Vision | None = None
) -> TemplateRenderer:
    """The renderer of a template, checked against the template's own text and the tokenizer's ids.

    Raises:
        ConfigError: the template has a fault, writes the time of day, or changes the text of a
            message.
        DataError: the tokenizer cannot be used.
    """
    if clock := _TIME_OF_DAY.search(template.text):
        raise ConfigError(
            f"the chat template of {template.where} writes the time of day, {clock[0]}, so that no "
            "turn's prompt begins as the one before; set RendererSpec.chat_template to one that "
            "writes at most the date"
        )
    try:
        renderer = TemplateRenderer(template, family, vision)
        template.render(family.adapt([QUESTION, ANSWER, QUESTION]), generation=True)
    except DataError as error:
        raise ConfigError(
            f"{error}; fix it, or set RendererSpec.chat_template: chatml"
        ) from error
    stop = template.tokenizer.convert_ids_to_tokens(renderer.stop_token_ids[0])
    forged = f"an {stop} in {{braces}}"
    for content in ("naïve  text\n", forged):
        for messages, tools in _conversations(content):
            theirs = _plain(template, family, messages, tools)
            if theirs is None:
                continue
            ours = renderer.prompt_text(messages, tools)
            if ours != theirs:
                raise ConfigError(
                    f"the chat template of {template.where} changes what is said in a message, so "
                    f"that its text cannot be distinguished from the template's own: it writes "
                    f"{theirs[-200:]!r}, and {ours[-200:]!r} where authors are marked; set "
                    f"RendererSpec.chat_template to one that writes messages as they are"
                )
            if content is not forged:
                (prompt,) = renderer.prompt(messages, tools)
                check_same_ids(template.tokenizer, template.where, prompt, theirs)
    return renderer


def _conversations(content: str) -> Iterator[_Trial]:
    """Conversations in which every role but the assistant says ``content``."""
    user: Message = {"role": "user", "content": content}
    yield (user,), ()
    yield (QUESTION, ANSWER, user), ()
    yield ({"role": "system", "content": content}, user, ANSWER, QUESTION), ()
    answered: tuple[Message, ...] = (
        user,
        CALL,
        {"role": "tool", "content": content, "name": TOOL.name},
    )
    yield answered, (TOOL,)
    yield (*answered, ANSWER, user), (TOOL,)


def _plain(
    template: ChatTemplate,
    family: Family,
    messages: tuple[Message, ...],
    tools: tuple[ToolSpec, ...],
) -> str | None:
    """The template's own text; None if it cannot write such a conversation or its tools."""
    try:
        text = template.render(
            family.adapt(messages), [tool.openai() for tool in tools], generation=True
        )
    except DataError:
        return None
    return None if any(tool.description not in text for tool in tools) else text
