"""Output text: valid Unicode of at most so many characters, with a visible cut."""

from __future__ import annotations


def valid_text(content: str | bytes) -> str:
    """``content`` as text that UTF-8 can carry; what is no character becomes U+FFFD."""
    if isinstance(content, bytes):
        return content.decode("utf-8", "replace")
    try:
        content.encode("utf-8")
    except UnicodeEncodeError:  # lone surrogates, as os.fsdecode makes them
        return content.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return content


def clip_text(text: str, max_chars: int) -> tuple[str, bool]:
    """At most ``max_chars`` characters of ``text``: its head and its tail, with a marker between
    that comes on top.

    Returns:
        The text, and whether anything was left out.
    """
    left_out = len(text) - max_chars
    if left_out <= 0:
        return text, False
    tail = max_chars // 2
    head = max_chars - tail
    marker = f"\n[... {left_out} of {len(text)} characters left out ...]\n"
    return text[:head] + marker + (text[-tail:] if tail else ""), True
