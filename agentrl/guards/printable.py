"""Printable: text of others that can neither control a terminal nor hide in it.

Control characters, marks that turn the direction of writing, tags and other characters without a
look, and halves of surrogate pairs are written by their number.
"""

from __future__ import annotations

import re
import textwrap

from rich.cells import cell_len

_HIDDEN = re.compile(
    # Controls, but tab and newline.
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"
    "\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_PICTURES = 0x2400
"""Where the pictures of the first control characters begin."""
_COMMAND = re.compile("`[^`\n]+`")
# Stands for a space within a command: no printable text holds it, and no line is broken at it.
_JOINT = "\0"


def printable(text: str) -> str:
    """``text`` as a terminal may have it."""
    return _HIDDEN.sub(_visible, text)


def printable_json(text: str) -> str:
    """A JSON text as a terminal may have it, of the same value."""
    return _HIDDEN.sub(_escaped, text)


def fitted(text: str, width: int, *, hang: int | None = None) -> str:
    """``text`` with its long lines broken between words.

    A word that is longer than a line stays whole, and so does what stands in backticks: messages
    write commands so, which are copied.

    Args:
        text: one line or several, as :func:`printable` leaves them.
        width: of a line.
        hang: where a broken line goes on; by default two columns right of its own beginning.
    """
    lines = []
    for line in text.split("\n"):
        if cell_len(line) <= width:
            lines.append(line)
            continue
        own = len(line) - len(line.lstrip(" "))
        margin = " " * (own + 2 if hang is None else hang)
        broken = textwrap.wrap(
            _COMMAND.sub(lambda command: command[0].replace(" ", _JOINT), line),
            width,
            subsequent_indent=margin,
            break_long_words=False,
            break_on_hyphens=False,
            expand_tabs=False,
        )
        lines += [piece.replace(_JOINT, " ") for piece in broken]
    return "\n".join(lines)


def encodable(text: str) -> str:
    """``text`` as UTF-8 can hold it: half of a surrogate pair is written out as an escape."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _visible(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20 or code == 0x7F:
        return chr(_PICTURES + (0x21 if code == 0x7F else code))
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
