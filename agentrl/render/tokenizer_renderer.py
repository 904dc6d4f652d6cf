"""Tokenizer renderer: the part of a renderer that depends on its tokenizer alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.render.encode import Piece, PieceEncoder
from agentrl.render.vision import Vision, shown_images
from agentrl.render.vocabulary import Vocabulary
from agentrl.types import MediaSpan, Message


class TokenizerRenderer:
    """The base of every ``Renderer``.

    Args:
        tokenizer: a fast Hugging Face tokenizer.
        assistant_markers: see ``PieceEncoder``.
        vision: the model's image format; None for a model of text alone.

    Attributes:
        stop_token_ids: see ``Renderer.stop_token_ids``; the subclass sets it.

    Raises:
        DataError: the tokenizer is of an unsupported kind.
    """

    stop_token_ids: tuple[int, ...]

    def __init__(
        self, tokenizer: Any, assistant_markers: Iterable[str], vision: Vision | None
    ) -> None:
        backend = tokenizer.backend_tokenizer
        self._encoder = PieceEncoder(backend, assistant_markers)
        self._vocabulary = Vocabulary(backend)
        self._vision = vision

    @property
    def vocab_size(self) -> int:
        """See ``Renderer.vocab_size``."""
        return self._vocabulary.size

    @property
    def image_token_ids(self) -> frozenset[int]:
        """See ``Renderer.image_token_ids``."""
        return self._vision.reserved_ids if self._vision else frozenset()

    def decode(self, token_ids: npt.NDArray[np.int32]) -> str:
        """See ``Renderer.decode``."""
        return self._vocabulary.decode(token_ids, self.stop_token_ids)

    def tokenize(self, text: str) -> npt.NDArray[np.int32]:
        """See ``Renderer.tokenize``."""
        return self._vocabulary.tokenize(text)

    def _encoded(
        self, pieces: Iterable[Piece], messages: Sequence[Message]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_], tuple[MediaSpan, ...]]:
        """Ids, whether each is content, and the spans of the images of ``messages``."""
        return shown_images(self._vision, *self._encoder.encode(pieces), messages)
