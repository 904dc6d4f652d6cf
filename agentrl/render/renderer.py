"""Renderer: the contract between messages and tokens, and the messages that it can write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from agentrl.errors import DataError
from agentrl.render.encode import Encoded, Piece, PieceEncoder, cached_if_short
from agentrl.render.vision import KNOWN_MODELS, Vision
from agentrl.types import (
    MediaSpan,
    Message,
    Segment,
    SegmentKind,
    ToolSpec,
    content_text,
    frozen_ints,
    images_in,
)
from agentrl.types.arrays import I32, Bools

# The end of a prompt, for example, is the same for every turn.
_CACHED_IDS = 16


class Renderer(ABC):
    """Converts messages to token segments, and never re-encodes the model's own text.

    Only the template's own markers become added tokens. The same text from a tool or a user is
    encoded as ordinary text, whether the token is flagged special or not.

    Args:
        tokenizer: a fast Hugging Face tokenizer.
        assistant_markers: see ``PieceEncoder``.
        vision: the model's image format; None for a model of text alone.

    Raises:
        DataError: the tokenizer is of an unsupported kind.
    """

    family: str
    """The template family's name, as in ``model.renderer``."""
    vocab_size: int
    """The tokenizer's ids are ``[0, vocab_size)``; a model's padded vocabulary may be larger."""
    stop_token_ids: tuple[int, ...]
    """Tokens that end an assistant's turn."""
    image_token_ids: frozenset[int]
    """Tokens that only images consist of; empty if the model takes none.

    A sequence with a sampled one cannot be extended, because no engine can tell it from an image.
    """

    def __init__(
        self, tokenizer: Any, assistant_markers: Iterable[str], vision: Vision | None
    ) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._encoder = PieceEncoder(self._backend, assistant_markers)
        self._vision = vision
        self.image_token_ids = vision.reserved_ids if vision else frozenset()
        vocabulary: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        self._known_ids = frozenset(vocabulary.values())
        self._longest_token = max(map(len, vocabulary))
        self.vocab_size = max(self._known_ids) + 1
        # the rollouts of a group often contain the same texts
        self._ids_of = cached_if_short(self._tokenize)
        self._text_of = cached_if_short(self._decode, longest=_CACHED_IDS)

    def token_ends(self, text: str) -> list[int]:
        """See ``PieceEncoder.token_ends``."""
        return self._encoder.token_ends(text)

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
    ) -> tuple[Segment, ...]:
        """A new sequence: one PROMPT segment that ends where the assistant's turn begins.

        Raises:
            DataError: the template refuses the conversation, cuts a message, does not write an
                image exactly once, or does not write the given tools. Also if a content is neither
                text nor parts of text and images, the model takes no images, or a tool call's
                arguments are not a mapping.
        """
        encoded = self._encoder.encode(self._prompt_pieces(messages, tools))
        ids, _, media = self._with_images(encoded, messages)
        return (Segment(SegmentKind.PROMPT, ids, media=media),)

    def fewest_tokens(self, messages: Iterable[Message]) -> int:
        """A lower bound of the tokens of messages, by their characters and the longest token.

        A text that no context could hold need not be encoded, which takes a second a megabyte. An
        assistant's messages count nothing, because a template may leave out their thoughts, nor
        does white space around a content, which it may trim.
        """
        normalizer = self._backend.normalizer
        characters = 0
        for message in messages:
            if message["role"] != "assistant":
                text = content_text(message.get("content")).strip()
                # half of a surrogate pair is refused where it is encoded
                known = text.encode(errors="ignore").decode()
                characters += len(
                    known if normalizer is None else normalizer.normalize_str(known)
                )
        return characters // self._longest_token

    def decode(self, token_ids: I32) -> str:
        """A completion's text without its final stop token; other added tokens stay visible.

        Ids outside the tokenizer's vocabulary (a padded vocabulary's) become U+FFFD.
        """
        ids = token_ids.tolist()
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return self._text_of(tuple(ids))

    def text(self, token_ids: I32) -> str:
        """The text of any tokens, every marker visible, for people; as ``decode`` with the stop
        token.
        """
        return self._text_of(tuple(token_ids.tolist()))

    def tokenize(self, text: str) -> I32:
        """The ids ``[n]`` of text alone, to measure the loss of sending a history as text.

        Every marker in the text becomes its added token, regardless of its author.
        """
        return self._ids_of(text)

    @abstractmethod
    def extend(
        self,
        completion: I32,
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

    @abstractmethod
    def target(self, message: Message) -> Segment:
        """An assistant's message to imitate: one TARGET segment with its end-of-turn token."""

    @abstractmethod
    def _prompt_pieces(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Iterable[Piece]:
        """The conversation up to where the assistant's turn begins."""

    def _context(
        self, encoded: Encoded, messages: Sequence[Message]
    ) -> tuple[Segment, ...]:
        """Consecutive tokens of one kind: OBSERVATION if they cover content, else TEMPLATE.

        Args:
            encoded: from ``PieceEncoder.encode``; its ids may be empty.
            messages: those whose images are in it.
        """
        ids, content, media = self._with_images(encoded, messages)
        if not ids.size:
            return ()
        ids = frozen_ints(ids)
        bounds = [0, *(np.flatnonzero(content[1:] != content[:-1]) + 1).tolist(), ids.size]
        return tuple(
            Segment(
                SegmentKind.OBSERVATION if content[start] else SegmentKind.TEMPLATE,
                ids[start:end],
                media=tuple(
                    replace(span, start=span.start - start)
                    for span in media
                    if start <= span.start < end
                ),
            )
            for start, end in pairwise(bounds)
        )

    def _with_images(
        self, encoded: Encoded, messages: Sequence[Message]
    ) -> tuple[I32, Bools, tuple[MediaSpan, ...]]:
        """``Vision.expand`` with the images of ``messages``.

        Raises:
            DataError: there are images, and the model takes none.
        """
        images = tuple(images_in(messages))
        if self._vision is not None:
            return self._vision.expand(*encoded, images)
        if images:
            raise DataError(
                f"the conversation has {len(images)} images, and the model takes text alone; use a "
                f"model of {', '.join(KNOWN_MODELS)}, or leave the images out"
            )
        return *encoded, ()

    def _decode(self, ids: Sequence[int]) -> str:
        """Text of known ids, with U+FFFD for each other one."""
        runs = (
            (known, list(run)) for known, run in groupby(ids, self._known_ids.__contains__)
        )
        return "".join(
            self._backend.decode(run, skip_special_tokens=False)
            if known
            else "\ufffd" * len(run)
            for known, run in runs
        )

    def _tokenize(self, text: str) -> I32:
        ids = self._backend.encode(text, add_special_tokens=False).ids
        return frozen_ints(np.asarray(ids, dtype=np.int32))


def text_content(message: Message) -> str:
    """The content of a message of text alone.

    Raises:
        DataError: it is no text.
    """
    content = message.get("content")
    if content is None:
        return ""
    if not isinstance(content, str):
        raise DataError(
            f"the content of a {message['role']} message must be text here, got "
            f"{type(content).__name__}; parts of text and images are for users and tools, and go "
            "through agentrl.types.with_images first"
        )
    return content


def call_arguments(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of a call.

    Raises:
        DataError: they are no mapping.
    """
    arguments = function["arguments"]
    if not isinstance(arguments, Mapping):
        raise DataError(
            f"a tool call's arguments must be a mapping, got {type(arguments).__name__} for "
            f"{function['name']!r}; parse them with json.loads before they become a message"
        )
    return arguments
