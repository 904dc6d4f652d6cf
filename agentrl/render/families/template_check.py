"""Template check: verifies on test conversations that a template can be rendered."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentrl.errors import ConfigError, DataError
from agentrl.render.chat_template import ChatTemplate, check_same_ids
from agentrl.render.families.family import Family
from agentrl.render.families.probe_messages import ANSWER, CALL, QUESTION, TOOL
from agentrl.render.template_renderer import TemplateRenderer
from agentrl.render.vision import Vision
from agentrl.types import Message, ToolSpec

_TIME_OF_DAY = re.compile(r"strftime_now\([^)]*%[-_0^#]?[HIMSTXRcfklprs][^)]*\)")

_Conversation = tuple[tuple[Message, ...], tuple[ToolSpec, ...]]


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
        raise ConfigError(f"{error}; fix it, or set RendererSpec.chat_template: chatml") from error
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


def _conversations(content: str) -> Iterator[_Conversation]:
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
