"""Pieces: the text of each single token, by the run's tokenizer, and those that are hidden.

A piece is what one id stands for whatever stands beside it. A byte-level token may hold part of a
character: its piece is then U+FFFD, and its bytes are told beside it.

The ids on disk are exact, since training and replay need them. Where a text of the run bears a mark
of ``SecretMask``, the tokens of that secret are hidden before anything decodes them. A secret that
this process's environment does not have cannot be found: then all tokens of that part of the turn
are hidden.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from agentrl.errors import DataError
from agentrl.guards.parsing import mapping, parse_json
from agentrl.guards.secret_mask import SecretMask, masked_names
from agentrl.store import RunDirectory
from agentrl.store.json_text import to_json
from agentrl.types import SegmentKind
from agentrl.types.arrays import I32, Bools
from agentrl.viewer.runs.stored_row import StoredRow

if TYPE_CHECKING:
    from tokenizers import Tokenizer


_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_START = "\N{LOWER ONE EIGHTH BLOCK}"
REDACTED_ID = -1
"""Stands for an id that must not be shown."""
HIDDEN_PIECE = "\N{FULL BLOCK}"
"""Stands for its text."""
_PART = "\N{REPLACEMENT CHARACTER}"


class TokenPiece(NamedTuple):
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
        self._pieces: dict[int, TokenPiece] = {}

    def of(self, token_ids: I32) -> tuple[list[str], dict[int, bytes]]:
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
        parts = {
            place: pieces[places[place]].part for place in np.flatnonzero(is_part).tolist()
        }
        return texts.tolist(), parts

    def data(self, token_ids: I32) -> list[bytes]:
        """The bytes of each of N ids; joined they are the exact text."""
        texts, parts = self.of(token_ids)
        return [parts.get(place) or text.encode() for place, text in enumerate(texts)]

    def text(self, token_ids: I32) -> str:
        """The exact text of consecutive ids, special tokens included."""
        return str(self.tokenizer.decode(token_ids.tolist(), skip_special_tokens=False))

    def _piece(self, token_id: int) -> TokenPiece:
        if token_id not in self._pieces:
            self._pieces[token_id] = self._make(token_id)
        return self._pieces[token_id]

    def _make(self, token_id: int) -> TokenPiece:
        if token_id == REDACTED_ID:
            return TokenPiece(HIDDEN_PIECE)
        if token_id in self._added:
            return TokenPiece(self._added[token_id])
        token = self.tokenizer.id_to_token(token_id)
        if token is None:
            # the model's padded vocabulary
            return TokenPiece(f"<{token_id}>")
        if "ByteLevel" in self._kinds:
            return _byte_level(token)
        if byte := _BYTE.fullmatch(token) if "ByteFallback" in self._kinds else None:
            return _of_bytes(bytes.fromhex(byte[1]))
        if self._kinds & {"Metaspace", "ByteFallback"}:
            return TokenPiece(token.replace(_WORD_START, " "))
        if "WordPiece" in self._kinds:
            return TokenPiece(
                token.removeprefix("##") if token.startswith("##") else f" {token}"
            )
        return TokenPiece(token if self._kinds else f" {token}")


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


def _byte_level(token: str) -> TokenPiece:
    table = _byte_of_character()
    try:
        return _of_bytes(bytes(table[character] for character in token))
    except KeyError:
        # a word of the vocabulary that was not written in bytes
        return TokenPiece(token)


def _of_bytes(data: bytes) -> TokenPiece:
    try:
        return TokenPiece(data.decode())
    except UnicodeDecodeError:
        return TokenPiece(_PART, data)


def tokenizer_file(run: RunDirectory, stage: str) -> Path | None:
    """The ``tokenizer.json`` that a run keeps of a stage, or else of its newest; None where it
    keeps none.
    """
    kept = mapping(run.read_record().get("tokenizers"))
    for name in (stage, *reversed(list(kept))):
        sha256 = mapping(kept.get(name)).get("tokenizer.json")
        if isinstance(sha256, str) and re.fullmatch("[0-9a-f]{64}", sha256):
            path = run.blobs_folder / sha256
            if path.is_file():
                return path
    return None


def stage_pieces(run: RunDirectory, stage: str) -> TokenPieces:
    """The pieces of a stage's tokenizer.

    Args:
        run: the run.
        stage: whose; any of the run's where this one has none of its own.

    Raises:
        DataError: the run keeps none, or what it keeps is none.
    """
    path = tokenizer_file(run, stage)
    if path is None:
        raise DataError(
            "the run keeps no tokenizer in blobs/, so ids are shown; training keeps that of a "
            "model with a tokenizer.json"
        )
    return load_pieces(path)


HIDDEN = (
    "their text is a secret that the run masked, or may hold one; the ids on disk are whole"
)

_SAMPLED = (SegmentKind.POLICY, SegmentKind.TARGET)

Find = Callable[[str], Iterable[tuple[int, int]]]
"""The spans of a text, as characters."""


def has_marks(columns: Mapping[str, Any]) -> bool:
    """Whether a secret was masked in a text of a stored row."""
    return any(masked_names(text) for text in columns.values() if isinstance(text, str))


def without_secrets(
    row: StoredRow, pieces: TokenPieces | None, mask: SecretMask
) -> StoredRow:
    """A trajectory without the ids of what was masked in its texts.

    Args:
        row: the trajectory.
        pieces: of the run's tokenizer; None where it is not here.
        mask: of the secrets that this process knows.
    """
    ids = row.arrays.token_ids
    taken = (
        np.zeros(ids.size, dtype=bool)
        if pieces is None
        else taken_tokens(row, pieces, mask.spans)
    )
    for part, names in _marked_parts(row):
        shown = b"" if pieces is None else b"".join(pieces.data(ids[part]))
        # A secret that was found and hidden needs no more; one that nobody here knows takes the
        # whole part.
        if names - masked_names(mask(shown.decode(errors="replace"))):
            taken |= part
    return hiding(row, taken)


def hiding(row: StoredRow, taken: Bools) -> StoredRow:
    """A trajectory without the ids of some tokens ``[N]``, and without its further arrays by token:
    beside a secret its own first letters may stand as what was likely.
    """
    shown = np.where(taken, np.int32(REDACTED_ID), row.arrays.token_ids)
    kept = replace(row.arrays, token_ids=shown)
    return StoredRow(row.columns, kept, row.annotations).without_side()


def taken_tokens(row: StoredRow, pieces: TokenPieces, find: Find) -> Bools:
    """``[N]`` which tokens have a part in a span of the text of all, or of a sequence."""
    ids = row.arrays.token_ids
    taken = np.zeros(ids.size, dtype=bool)
    for places in (np.arange(ids.size), *map(row.positions, row.paths())):
        taken[places] |= tokens_of(pieces.data(ids[places]), find)
    return taken


def tokens_of(data: Sequence[bytes], find: Find) -> Bools:
    """``[N]`` which of N tokens, by their bytes, have a part in a span of the whole text.

    Args:
        data: the tokens' bytes.
        find: the spans of a text, as characters.
    """
    decoder = getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(part) for part in data]
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    # a token that ends within a character has a part in the one that comes next
    reach = np.where(lengths == 0, starts + 1, ends)
    text = "".join(texts) + decoder.decode(b"", True)
    taken = np.zeros(len(data), dtype=bool)
    for start, end in find(text):
        taken |= (starts < end) & (reach > start)
    return taken


def _marked_parts(row: StoredRow) -> Iterable[tuple[Bools, set[str]]]:
    """``[N]`` which tokens are a turn's context or its completion, and what is masked in its text;
    those without a mark are left out."""
    sampled = np.isin(row.arrays.kinds, _SAMPLED)
    before: set[str] = set()
    for turn in row.turns:
        own = row.arrays.turn_index == turn["index"]
        given = masked_names(to_json(turn.get("observed")))
        if turn["parent"] is None:
            # the context holds the conversation so far
            given |= before
        said = masked_names(to_json([turn.get("text"), turn.get("message")]))
        before |= given | said
        for part, names in ((own & ~sampled, given), (own & sampled, said)):
            if names:
                yield part, names
