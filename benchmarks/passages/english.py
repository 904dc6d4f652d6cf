"""English: the paragraphs of prose in manuals, dictionaries and books, and passages made of them.

- Paragraphs come from HTML, from man pages, from plain text, packed by gzip or not.
- A paragraph counts as English prose by its share of function words; code and tables have few.
- Passages are of about a hundred words, as in the usual corpora of Wikipedia. None comes twice.
"""

from __future__ import annotations

import gzip
import hashlib
import html
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Passage", "cut", "paragraphs", "read_passages"]

WORDS = 100
"""Words of a passage: at least half as many, at most twice."""
LEAST_WORDS = 5
LEAST_SHARE = 0.15
FUNCTION_WORDS = frozenset(
    (
        *(
            "the",
            "of",
            "and",
            "to",
            "a",
            "in",
            "is",
            "that",
            "it",
            "for",
            "as",
            "with",
            "be",
            "by",
        ),
        *(
            "are",
            "this",
            "on",
            "or",
            "from",
            "an",
            "which",
            "not",
            "at",
            "if",
            "can",
            "has",
            "was",
        ),
        *(
            "but",
            "have",
            "will",
            "when",
            "all",
            "you",
            "its",
            "their",
            "his",
            "no",
            "one",
            "any",
        ),
    )
)
UNREAD = re.compile(
    r"<(script|style|nav|head|svg)\b.*?</\1\s*>|<!--.*?-->", re.DOTALL | re.IGNORECASE
)
BLOCK = re.compile(
    r"</?(?:p|div|li|d[dtl]|t[dhr]|table|h[1-6]|pre|section|article|[uo]l|[bh]r)\b[^>]*>",
    re.IGNORECASE,
)
TAG = re.compile(r"<[^>]*>")
BLANK_LINE = re.compile(r"\n\s*\n")
ROFF_BREAK = re.compile(
    r"^[.'](?:\\\"|(?:TH|Dd|Dt|Os|PP|P|LP|TP|IP|SH|SS|Pp|It|Sh|Ss|RS|RE)\b).*$",
    re.MULTILINE,
)
ROFF_REQUEST = re.compile(r"^[.'][A-Za-z]{1,3}\b ?", re.MULTILINE)
ROFF_ESCAPE = re.compile(r"\\(?:f(?:\[\w*\]|\(\w\w|\w)|\(\w\w|[&|^/,])")
TEXT_ENDINGS = frozenset((".txt", ".text", ".pod", ".dict"))


class Passage(NamedTuple):
    """A piece of one file's prose, named for the file."""

    title: str
    text: str


def read_passages(folder: Path) -> Iterator[Passage]:
    """The passages of all files of a package, in the order of their names, each once."""
    seen: set[bytes] = set()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        for text in cut(paragraphs(path)):
            digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
            if digest not in seen:
                seen.add(digest)
                yield Passage(path.name.partition(".")[0].replace("_", " "), text)


def paragraphs(path: Path) -> Iterator[str]:
    """The paragraphs of English prose in a file, with single blanks; none of a file of no text."""
    text = _text(path)
    for paragraph in BLANK_LINE.split(text):
        words = paragraph.split()
        if len(words) < LEAST_WORDS:
            continue
        known = sum(word.lower() in FUNCTION_WORDS for word in words)
        if known >= LEAST_SHARE * len(words):
            yield " ".join(words)


def cut(texts: Iterable[str]) -> Iterator[str]:
    """Joins paragraphs until a passage is long enough, and cuts those that are too long."""
    kept: list[str] = []
    for text in texts:
        kept += text.split()
        start = 0
        while len(kept) - start >= WORDS:
            # a paragraph ends where it ends, if the passage does not become too long by that
            end = len(kept) if len(kept) - start < 2 * WORDS else start + WORDS
            yield " ".join(kept[start:end])
            start = end
        del kept[:start]
    if len(kept) >= WORDS // 2:
        yield " ".join(kept)


def _text(path: Path) -> str:
    name = path.name
    opened = path.read_bytes()
    if path.suffix in (".gz", ".dz"):
        try:
            opened = gzip.decompress(opened)
        except (OSError, EOFError, zlib.error):
            return ""
        name = path.stem
    text = opened.decode(errors="replace")
    if name.endswith((".html", ".htm")):
        return html.unescape(TAG.sub("", BLOCK.sub("\n\n", UNREAD.sub("", text))))
    if path.parent.name.startswith("man"):
        return _man(text)
    return text if Path(name).suffix in TEXT_ENDINGS else ""


def _man(text: str) -> str:
    broken = ROFF_BREAK.sub("\n", text)
    plain = ROFF_ESCAPE.sub("", ROFF_REQUEST.sub("", broken))
    return plain.replace("\\-", "-").replace("\\ ", " ").replace("\\e", "\\")
