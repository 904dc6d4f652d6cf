"""Chat template: renders a model's own template as its tokenizer does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from agentrl.errors import DataError
from agentrl.types import Segment


@dataclass(frozen=True)
class ChatTemplate:
    """One Jinja template with its tokenizer.

    Args:
        tokenizer: its ``apply_chat_template`` renders, with its own special tokens and filters.
        text: the Jinja text.
        where: the owner of the template, for messages.
        variables: further variables of the template, such as ``enable_thinking``.
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
            messages: in the template's shape.
            tools: in OpenAI's shape.
            generation: whether to add the prompt of the assistant's next turn.

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


def check_same_ids(tokenizer: Any, where: str, prompt: Segment, text: str) -> None:
    """Checks that a renderer's prompt has the tokenizer's own ids of the rendered text.

    Raises:
        DataError: they differ, as for a tokenizer whose added tokens absorb the white space around
            them.
    """
    ids = prompt.token_ids.tolist()
    theirs = tokenizer.encode(text, add_special_tokens=False)
    if ids != theirs:
        raise DataError(
            f"the tokenizer of {where} encodes a test conversation otherwise than agentrl does: "
            f"{theirs[:40]} against {ids[:40]}; its added tokens may strip white space or be "
            "normalized, which is not supported: use the model's plain tokenizer"
        )


def num_shared(one: str, other: str) -> int:
    """The length of the common beginning of two texts."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
