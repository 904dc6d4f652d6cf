"""Pieces: the text of each single token, by the tokenizer that a run keeps.

A piece is what one id stands for whatever stands beside it. A byte-level token may hold part of a
character: its piece is then U+FFFD, and its bytes are told beside it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agentrl.errors import DataError
from agentrl.guards.parsing import parse_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_START = "\N{LOWER ONE EIGHTH BLOCK}"
REDACTED_ID = -1
"""Stands for an id that must not be shown."""
HIDDEN_PIECE = "\N{FULL BLOCK}"
"""Stands for its text."""
_PART = "\N{REPLACEMENT CHARACTER}"


class Piece(NamedTuple):
    """Of one token.

    Args:
        text: its characters, or U+FFFD where it is none.
        part: its bytes where they are no whole characters, else empty.
    """

    text: str
    part: bytes = b""


class TokenPieces:
    """Pieces of one tokenizer, each made once; used under its owner's lock.

    Args:
        tokenizer: which.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        decoder = "null"
        if tokenizer.decoder is not None:
            decoder = tokenizer.decoder.__getstate__().decode()
        self._kinds = _decoder_kinds(parse_json(decoder))
        self._added = {
            token_id: added.content
            for token_id, added in tokenizer.get_added_tokens_decoder().items()
        }
        self._pieces: dict[int, Piece] = {}

    def of(self, token_ids: npt.NDArray[np.int32]) -> tuple[list[str], dict[int, bytes]]:
        """The pieces of ids.

        Args:
            token_ids: ``[N]``.

        Returns:
            N texts, and the bytes of those positions that are no whole characters.
        """
        # each token once: most of a long text's occur often
        unique, places = np.unique(token_ids, return_inverse=True)
        pieces = [self._piece(token_id) for token_id in unique.tolist()]
        texts = np.array([piece.text for piece in pieces], dtype=object)[places]
        is_part = np.array([piece.part != b"" for piece in pieces], dtype=bool)[places]
        parts = {place: pieces[places[place]].part for place in np.flatnonzero(is_part).tolist()}
        return texts.tolist(), parts

    def data(self, token_ids: npt.NDArray[np.int32]) -> list[bytes]:
        """The bytes of each of N ids; joined they are the exact text."""
        texts, parts = self.of(token_ids)
        return [parts.get(place) or text.encode() for place, text in enumerate(texts)]

    def text(self, token_ids: npt.NDArray[np.int32]) -> str:
        """The exact text of consecutive ids, special tokens included."""
        return str(self.tokenizer.decode(token_ids.tolist(), skip_special_tokens=False))

    def _piece(self, token_id: int) -> Piece:
        if token_id not in self._pieces:
            self._pieces[token_id] = self._make(token_id)
        return self._pieces[token_id]

    def _make(self, token_id: int) -> Piece:
        if token_id == REDACTED_ID:
            return Piece(HIDDEN_PIECE)
        if token_id in self._added:
            return Piece(self._added[token_id])
        token = self.tokenizer.id_to_token(token_id)
        if token is None:
            # the model's padded vocabulary
            return Piece(f"<{token_id}>")
        if "ByteLevel" in self._kinds:
            return _byte_level(token)
        if byte := _BYTE.fullmatch(token) if "ByteFallback" in self._kinds else None:
            return _of_bytes(bytes.fromhex(byte[1]))
        if self._kinds & {"Metaspace", "ByteFallback"}:
            return Piece(token.replace(_WORD_START, " "))
        if "WordPiece" in self._kinds:
            return Piece(token.removeprefix("##") if token.startswith("##") else f" {token}")
        return Piece(token if self._kinds else f" {token}")


@lru_cache(maxsize=2)
def load_pieces(path: Path) -> TokenPieces:
    """The pieces of a ``tokenizer.json``; the two used last stay in memory.

    Args:
        path: the file, named by its hash.

    Raises:
        DataError: the file is no tokenizer.
    """
    from tokenizers import Tokenizer

    try:
        return TokenPieces(Tokenizer.from_file(str(path)))
    except Exception as error:
        # the library raises bare Exceptions
        raise DataError(f"{path} cannot be read as a tokenizer: {error}") from error


def _decoder_kinds(decoder: Mapping[str, Any] | None) -> set[str]:
    """The types of a decoder and of those in its sequence."""
    if decoder is None:
        return set()
    kinds = {str(decoder.get("type"))}
    for inner in decoder.get("decoders", ()):
        kinds |= _decoder_kinds(inner)
    return kinds


@lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    """GPT-2's map, which writes each byte as one printable character."""
    # Those that are printable stand for themselves, the others for characters from 256 on.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }


def _byte_level(token: str) -> Piece:
    table = _byte_of_character()
    try:
        return _of_bytes(bytes(table[character] for character in token))
    except KeyError:
        # a word of the vocabulary that was not written in bytes
        return Piece(token)


def _of_bytes(data: bytes) -> Piece:
    try:
        return Piece(data.decode())
    except UnicodeDecodeError:
        return Piece(_PART, data)
