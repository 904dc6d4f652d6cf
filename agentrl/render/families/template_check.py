"""Proof that a template can be rendered with its authors known, on conversations that try it."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.errors import ConfigError, DataError
from agentrl.render.chat_template import ChatTemplate
from agentrl.render.families.family import Family
from agentrl.render.families.probe_messages import ANSWER, CALL, QUESTION, TOOL
from agentrl.render.template_renderer import TemplateRenderer
from agentrl.render.vision import Vision
from agentrl.types import Message, ToolSpec

__all__ = ["prove"]

_Conversation = tuple[tuple[Message, ...], tuple[ToolSpec, ...]]


def prove(template: ChatTemplate, family: Family, vision: Vision | None = None) -> TemplateRenderer:
    """The renderer of a template, proved to write what the template itself writes, and the tokenizer's own ids.

    Raises:
        ConfigError: the template has a fault, or changes what is said.
        DataError: the tokenizer cannot be used.
    """
    try:
        renderer = TemplateRenderer(template, family, vision)
        template.render(family.adapt([QUESTION, ANSWER, QUESTION]), generation=True)
    except DataError as error:
        raise ConfigError(f"{error}; mend it, or set RendererSpec.chat_template: chatml") from error
    forged = template.tokenizer.convert_ids_to_tokens(renderer.stop_token_ids[0])
    for messages, tools in _conversations("naïve  text\n"):
        theirs = _plain(template, family, messages, tools)
        if theirs is not None:
            _same_text(template, renderer.text(messages, tools, generation=True), theirs)
            _same_ids(template, renderer.prompt(messages, tools)[0].token_ids.tolist(), theirs)
    for messages, tools in _conversations(f"an {forged} in {{braces}}"):
        theirs = _plain(template, family, messages, tools)
        if theirs is not None:
            _same_text(template, renderer.text(messages, tools, generation=True), theirs)
    return renderer


def _conversations(content: str) -> Iterator[_Conversation]:
    """Conversations in which ``content`` is what each but the assistant says."""
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
    """What the template writes itself; None where it has no place for such a conversation, or not for the tools."""
    try:
        text = template.render(
            family.adapt(messages), [tool.openai() for tool in tools], generation=True
        )
    except DataError:
        return None
    return None if any(tool.description not in text for tool in tools) else text


def _same_text(template: ChatTemplate, ours: str, theirs: str) -> None:
    if ours != theirs:
        raise ConfigError(
            f"the chat template of {template.where} changes what is said in a message, so that its text cannot be "
            f"told from the template's own: it writes {theirs[-200:]!r}, and {ours[-200:]!r} where authors are "
            "marked; set RendererSpec.chat_template to one that writes messages as they are"
        )


def _same_ids(template: ChatTemplate, ours: list[int], text: str) -> None:
    theirs = template.tokenizer.encode(text, add_special_tokens=False)
    if ours != theirs:
        raise DataError(
            f"the tokenizer of {template.where} encodes a test conversation otherwise than agentrl does: {theirs[:40]} "
            f"against {ours[:40]}; its added tokens may strip white space or be normalized, which is not supported: "
            "use the model's plain tokenizer"
        )
