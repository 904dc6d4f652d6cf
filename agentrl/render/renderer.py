"""Renderer: the contract between messages and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from agentrl.types import Message, Segment, ToolSpec


class Renderer(Protocol):
    """Converts messages to token segments, and never re-encodes the model's own text.

    Only the template's own markers become added tokens. The same text from a tool or a user is
    encoded as ordinary text, whether the token is flagged special or not.
    """

    @property
    def family(self) -> str:
        """The template family's name, as in ``model.renderer``."""
        ...

    @property
    def vocab_size(self) -> int:
        """The tokenizer's ids are ``[0, vocab_size)``; a model's padded vocabulary may be
        larger.
        """
        ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an assistant's turn."""
        ...

    @property
    def image_token_ids(self) -> frozenset[int]:
        """Tokens that only images consist of; empty if the model takes none.

        A sequence with a sampled one cannot be extended, because no engine can tell it from an
        image.
        """
        ...

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
    ) -> tuple[Segment, ...]:
        """A new sequence: one PROMPT segment that ends where the assistant's turn begins.

        Raises:
            DataError: the template cannot write the conversation.
        """
        ...

    def extend(
        self,
        completion: npt.NDArray[np.int32],
        messages: Sequence[Message],
        history: Sequence[Message] = (),
        tools: Sequence[ToolSpec] = (),
    ) -> tuple[Segment, ...] | None:
        """The tokens between a completion and the beginning of the next assistant's turn.

        Args:
            completion: ``[n]`` the ids of the turn just sampled, with its stop token if one was
                sampled.
            messages: the environment's messages since.
            history: the messages before those; the last one is the completion's own.
            tools: the tools in the sequence's prompt.

        Returns:
            TEMPLATE and OBSERVATION segments to append to the sequence. None if the template
            rewrites history, or cannot be shown to keep it; a new sequence must then start.
        """
        ...

    def target(self, message: Message) -> Segment:
        """An assistant's message to imitate: one TARGET segment with its end-of-turn token."""
        ...

    def decode(self, token_ids: npt.NDArray[np.int32]) -> str:
        """A completion's text without its final stop token; other added tokens stay visible.

        Ids outside the tokenizer's vocabulary (a padded vocabulary's) become U+FFFD.
        """
        ...

    def tokenize(self, text: str) -> npt.NDArray[np.int32]:
        """The ids ``[n]`` of text alone, to measure the loss of sending a history as text.

        Every marker in the text becomes its added token, regardless of its author.
        """
        ...
