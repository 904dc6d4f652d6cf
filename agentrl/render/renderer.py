"""The contract between messages and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from agentrl.types import Message, Segment, ToolSpec

__all__ = ["Renderer"]


class Renderer(Protocol):
    """Turns messages into token segments, and never re-encodes what the model wrote.

    The text of any added token (flagged special or not) that comes from a tool or a user is encoded as
    ordinary text; only the template's own markers become added tokens.
    """

    @property
    def family(self) -> str:
        """The template family's name, as ``model.renderer`` has it."""
        ...

    @property
    def vocab_size(self) -> int:
        """Ids that the tokenizer knows: ``[0, vocab_size)``; a model's padded vocabulary may be larger."""
        ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an assistant's turn."""
        ...

    @property
    def image_token_ids(self) -> frozenset[int]:
        """Tokens that images alone are made of; empty where the model sees none. No sequence that holds a sampled
        one can be gone on with, as no engine could tell it from an image."""
        ...

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
    ) -> tuple[Segment, ...]:
        """A new sequence: one PROMPT segment that ends where the assistant's turn begins."""
        ...

    def extend(
        self,
        completion: npt.NDArray[np.int32],
        messages: Sequence[Message],
        history: Sequence[Message] = (),
        tools: Sequence[ToolSpec] = (),
    ) -> tuple[Segment, ...] | None:
        """What follows a completion up to where the next assistant's turn begins.

        Args:
            completion: ``[n]`` the ids of the turn just sampled, its stop token included where it was sampled.
            messages: what the environment said since.
            history: the messages before those, the completion's own last.
            tools: what the sequence's prompt told of tools.

        Returns:
            TEMPLATE and OBSERVATION segments, to be appended to the sequence; None where the template rewrites
            history, or cannot be shown to keep it, so that a new sequence must start.
        """
        ...

    def target(self, message: Message) -> Segment:
        """An assistant's message to imitate: one TARGET segment, its end-of-turn token included."""
        ...

    def decode(self, token_ids: npt.NDArray[np.int32]) -> str:
        """The text of a completion, without the stop token that ended it; other added tokens stay visible.

        Ids outside the tokenizer's vocabulary (a padded vocabulary's) become U+FFFD.
        """
        ...

    def tokenize(self, text: str) -> npt.NDArray[np.int32]:
        """The ids ``[n]`` that text alone would become: what is lost where a history is sent as text. For measuring
        only: markers count whoever wrote them."""
        ...
