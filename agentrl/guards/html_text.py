"""HTML text: what a page says, read once from its beginning to its end.

The standard library's parser reads on to the end for each mark that nothing closes. Here such a
mark takes the rest of the page with it, as a browser's does.
"""

from __future__ import annotations

import html
import re
import time

_HIDDEN = frozenset({"noscript", "template", "svg"})
_BLOCKS = frozenset(
    {"p", "div", "br", "li", "tr", "h1", "h2", "h3", "h4", "pre", "table", "ul"}
)
# What follows a name up to the tag's end: a quotation mark counts behind an equals sign alone.
_INSIDE = r"(?:[^=>]++|=\s*+(?:\"[^\"]*+\"|'[^']*+')?+)*+"
# A piece is what stands for nothing (a comment, a declaration, an end tag without a name, and a
# script or style with its content, which is no HTML), a tag, or text. It goes on to the page's end
# where nothing closes it.
_PIECE = re.compile(
    r"<!--.*?(?:-->|\Z)|<(?:[!?]|/(?![a-zA-Z])).*?(?:>|\Z)"
    rf"|<(?P<raw>(?i:script|style))(?=[\s/>]){_INSIDE}>.*?(?=</(?i:(?P=raw))[\s/>]|\Z)"
    rf"|<(?P<close>/?)(?P<name>[a-zA-Z][^\s/>]*+){_INSIDE}>?|(?P<text>[^<]++|<)",
    re.DOTALL,
)
_REFERENCE = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z]\w{0,31});?", re.ASCII)
_SPACE = re.compile(r"\s+")


def html_text(page: str, *, seconds: float = 10.0) -> str:
    """The text of a page, in lines as its blocks have them; scripts and styles are left out.

    Args:
        page: the page.
        seconds: that it may take.

    Raises:
        TimeoutError: it takes longer.
    """
    ends_at = time.monotonic() + seconds
    texts: list[str] = []
    hidden = 0
    for piece in _PIECE.finditer(page):
        if time.monotonic() > ends_at:
            raise TimeoutError(f"the page cannot be read within {seconds:g} s")
        name = (piece["name"] or "").lower()
        if name in _BLOCKS:
            texts.append("\n")
        # A slash closes what is no HTML, as an SVG image is, and nothing else.
        elif name in _HIDDEN and not (name == "svg" and piece[0].endswith("/>")):
            hidden = max(0, hidden - 1) if piece["close"] else hidden + 1
        elif piece["text"] and not hidden:
            said = _REFERENCE.sub(lambda found: html.unescape(found[0]), piece["text"])
            texts.append(_SPACE.sub(" ", said))
    lines = (line.strip(" ") for line in "".join(texts).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
