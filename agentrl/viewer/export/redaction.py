"""Redaction: takes what patterns match out of texts and out of token ids.

A match in the text of a sequence takes every token that has a part in it, wherever the tokens were
cut. A taken token has the id -1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from agentrl.errors import ConfigError, DataError
from agentrl.viewer.pieces import TokenPieces
from agentrl.viewer.runs.stored_row import StoredRow
from agentrl.viewer.secret_tokens import hiding, taken_tokens

MARK = "█████"
"""What stands for a match in a text."""

_ARRAY = {"dtype", "data"}


class Redaction:
    """Regular expressions of what must not leave.

    Args:
        patterns: as Python's ``re`` has them.

    Raises:
        ConfigError: one is none, or matches nothing or the mark itself.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns: list[re.Pattern[str]] = []
        for pattern in patterns:
            try:
                compiled = re.compile(pattern)
            except re.error as error:
                raise ConfigError(
                    f"--redact must be a regular expression, got {pattern!r}: {error}"
                ) from error
            if compiled.search("") or compiled.search(MARK):
                raise ConfigError(
                    f"--redact must match the text that is to go and nothing else, and {pattern!r} "
                    f"also matches {'nothing' if compiled.search('') else MARK}; narrow it"
                )
            self._patterns.append(compiled)

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def text(self, text: str) -> str:
        """``text`` with a mark for each match."""
        for pattern in self._patterns:
            text = pattern.sub(MARK, text)
        return text

    def json(self, value: Any) -> Any:
        """A JSON value whose strings, names and integers are free of matches; packed arrays stay
        as they are.
        """
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            if value.keys() == _ARRAY:
                return value
            return {self.text(str(name)): self.json(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.json(item) for item in value]
        # A number may be what must not leave, such as one of a telephone.
        if isinstance(value, int) and not isinstance(value, bool):
            return value if self.text(str(value)) == str(value) else MARK
        return value

    def data(self, data: bytes) -> bytes | None:
        """A blob whose text is free of matches; None where it is no text and has one."""
        try:
            return self.text(data.decode()).encode()
        except UnicodeDecodeError:
            found = self.text(data.decode("latin-1")) != data.decode("latin-1")
            return None if found else data

    def row(self, row: StoredRow, pieces: TokenPieces) -> StoredRow:
        """A trajectory without the ids whose text matches, and without alternatives: one of them
        and the tokens around it may spell a match that was never sampled.

        Raises:
            DataError: a match is left.
        """
        kept = hiding(row, taken_tokens(row, pieces, self._spans))
        if taken_tokens(kept, pieces, self._spans).any():
            raise DataError(
                f"trajectory {row.columns['id']!r} still matches after its ids were redacted; "
                "narrow --redact"
            )
        return kept

    def _spans(self, text: str) -> list[tuple[int, int]]:
        return [match.span() for pattern in self._patterns for match in pattern.finditer(text)]
