"""HTML text: what a page says, read once from its beginning to its end.

The standard library's parser reads on to the end for each mark that nothing closes. Here such a
mark takes the rest of the page with it, as a browser's does.
"""

from __future__ import annotations

import html
import re
import time

_HIDDEN = frozenset({"noscript", "template", "svg"})
_RAW = frozenset({"script", "style"})
"""Tags whose content is no HTML, and is not shown."""
_BLOCKS = frozenset({"p", "div", "br", "li", "tr", "h1", "h2", "h3", "h4", "pre", "table", "ul"})
# What follows a name up to the tag's end: a quotation mark counts behind an equals sign alone.
_TAG = re.compile(
    r"<(?P<close>/?)(?P<name>[a-zA-Z][^\s/>]*+)"
    r"(?:[^=>]++|=\s*+(?:\"[^\"]*+\"|'[^']*+')?+)*+(?P<end>>?)"
)
_REFERENCE = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z]\w{0,31});?", re.ASCII)
_RAW_END = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in _RAW}
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
    hidden = position = 0
    while (mark := page.find("<", position)) >= 0:
        if time.monotonic() > ends_at:
            raise TimeoutError(f"the page cannot be read within {seconds:g} s")
        if not hidden:
            texts.append(_said(page[position:mark]))
        tag = _TAG.match(page, mark)
        if tag is None:
            end = _after_other_mark(page, mark)
            if end == mark + 1 and not hidden:
                texts.append("<")
            position = end
            continue
        name = tag["name"].lower()
        position = tag.end() if tag["end"] else len(page)
        if name in _BLOCKS:
            texts.append("\n")
        if name in _HIDDEN:
            hidden = max(0, hidden - 1) if tag["close"] else hidden + 1
        if name in _RAW and not tag["close"]:
            ends = _RAW_END[name].search(page, position)
            position = ends.start() if ends else len(page)
    if not hidden:
        texts.append(_said(page[position:]))
    lines = (line.strip(" ") for line in "".join(texts).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _after_other_mark(page: str, mark: int) -> int:
    """The position behind a comment, a declaration or an end tag without a name; behind ``<``
    alone where it is none of these.
    """
    for begins, ends in (("<!--", "-->"), ("<!", ">"), ("<?", ">"), ("</", ">")):
        if page.startswith(begins, mark):
            end = page.find(ends, mark + len(begins))
            return len(page) if end < 0 else end + len(ends)
    return mark + 1


def _said(text: str) -> str:
    """A run of text, with its references read and its blanks as one."""
    return _SPACE.sub(" ", _REFERENCE.sub(lambda found: html.unescape(found[0]), text))
