"""A model's chat template, rendered as its tokenizer renders it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.errors import DataError

__all__ = ["ChatTemplate"]


@dataclass(frozen=True)
class ChatTemplate:
    """One Jinja template with the tokenizer that it belongs to.

    Args:
        tokenizer: whose ``apply_chat_template`` renders, with its own special tokens and filters.
        text: the Jinja text.
        where: what the template belongs to, for messages.
        variables: given to the template beside messages and tools, such as ``enable_thinking``.
    """

    tokenizer: Any
    text: str
    where: str
    variables: Mapping[str, Any] = field(default_factory=dict)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        generation: bool,
    ) -> str:
        """The conversation as text.

        Args:
            messages: in the shape that the template wants.
            tools: in the OpenAI shape.
            generation: whether the prompt for the assistant's next turn ends it.

        Raises:
            DataError: the template has a fault, or refuses this conversation.
        """
        from jinja2 import TemplateError

        try:
            text = self.tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) or None,
                chat_template=self.text,
                add_generation_prompt=generation,
                tokenize=False,
                **self.variables,
            )
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            roles = ", ".join(str(message["role"]) for message in messages)
            raise DataError(
                f"the chat template of {self.where} cannot render a conversation of {roles} turns"
                f"{' with tools' if tools else ''}: {error}"
            ) from error
        return str(text)
