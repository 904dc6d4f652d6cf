"""Secret mask: replaces secrets of the environment wherever text is stored.

A text is masked before it is cut: of a secret that the cut divides no mask would find what is left.

What is masked is text. Token ids stay as they were sampled, since training needs them, so code that
decodes ids for people hides them again (``agentrl.viewer.pieces``).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

_SECRET_NAME = re.compile(
    r"(^|_)(API_?KEY|KEY|KEY_ID|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE
)
_MARK = re.compile("<masked:([^<>]+)>")
# Shorter values are words such as "true" or "changeme", and masking them would tear ordinary text
# apart.
_MIN_LENGTH = 8


def masked_names(text: str) -> set[str]:
    """The variables whose secrets were masked in ``text``."""
    return set(_MARK.findall(text)) if "<masked:" in text else set()


def beginning(text: str, longest: int) -> str:
    """The first ``longest`` characters of a text, then ``…`` where it has more. A secret that would
    be cut is masked; what is shorter stays as it is, for the mask of whoever stores it.
    """
    if len(text) <= longest:
        return text
    return f"{SecretMask()(text)[:longest]}…"


def ending(text: str, longest: int) -> str:
    """The last ``longest`` characters of a text, behind ``…`` where it has more; as
    :func:`beginning` else.
    """
    if len(text) <= longest:
        return text
    return f"…{SecretMask()(text)[-longest:]}"


class SecretMask:
    """Replaces the values of secret environment variables by ``<masked:NAME>``.

    A variable is secret when its name ends in KEY, KEY_ID, TOKEN, SECRET, PASSWORD, PASSWD or
    CREDENTIALS, and its value has at least 8 characters. The value is found as it is, and as JSON
    would escape it.

    Args:
        environment: the variables; this process's where None. They are read once.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        variables = os.environ if environment is None else environment
        names = {
            value: name
            for name, value in variables.items()
            if _SECRET_NAME.search(name) and len(value) >= _MIN_LENGTH
        }
        marks: dict[str, str] = {}
        for value, name in names.items():
            for spelling in (
                value,
                json.dumps(value, ensure_ascii=False)[1:-1],
                json.dumps(value)[1:-1],
            ):
                marks[spelling] = f"<masked:{name}>"
        # a value that contains another one is replaced first
        self._marks = sorted(marks.items(), key=lambda mark: len(mark[0]), reverse=True)

    def __call__(self, text: str) -> str:
        """``text`` without the secrets."""
        for value, mark in self._marks:
            if value in text:
                text = text.replace(value, mark)
        return text

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where secrets stand in ``text``."""
        return [
            found.span()
            for value, _ in self._marks
            for found in re.finditer(re.escape(value), text)
        ]

    def in_bytes(self, data: bytes) -> bytes:
        """``data`` without the secrets, whatever else it is."""
        if not self._marks:
            return data
        escape = "surrogateescape"
        return self(data.decode(errors=escape)).encode(errors=escape)
