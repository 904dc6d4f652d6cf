"""Thoughts: a turn's ``<think>`` block, as parsers, chat templates and environments read it."""

from __future__ import annotations

import re

THOUGHTS_OPEN = "<think>"
THOUGHTS_CLOSE = "</think>"
_ANY = re.compile(r"<think>.*?(?:</think>|\Z)|\A.*</think>", re.DOTALL)


def opened_thoughts(prompt_end: str) -> str:
    """``<think>`` where the end of a prompt opens a block, so that a completion begins within it;
    else nothing.
    """
    return THOUGHTS_OPEN if prompt_end.rstrip().endswith(THOUGHTS_OPEN) else ""


def split_reasoning(text: str, *, before: str | None = None) -> tuple[str | None, str]:
    """The leading ``<think>`` block and the rest.

    The opening tag may be missing, because some templates end the prompt with it. A block that is
    never closed takes the rest of the text.

    Args:
        text: a completion.
        before: without an opening tag, a closing one counts only in front of the first of these.

    Returns:
        The thoughts without their tags, None where there are none; and what follows them.
    """
    stripped = text.lstrip()
    if stripped.startswith(THOUGHTS_OPEN):
        thoughts, _, rest = stripped.removeprefix(THOUGHTS_OPEN).partition(THOUGHTS_CLOSE)
        return thoughts.strip(), rest
    limit = text.find(before) if before is not None else -1
    end = text.find(THOUGHTS_CLOSE, 0, limit if limit >= 0 else len(text))
    if end < 0:
        return None, text
    return text[:end].strip(), text[end + len(THOUGHTS_CLOSE) :]


def split_as_template(text: str) -> tuple[str, str]:
    """Thoughts and content of a stored message, split exactly as Qwen3's chat template does."""
    if THOUGHTS_CLOSE not in text:
        return "", text
    before, *_, content = text.split(THOUGHTS_CLOSE)
    thoughts = before.rstrip("\n").split(THOUGHTS_OPEN)[-1].lstrip("\n")
    return thoughts, content.lstrip("\n")


def without_thoughts(text: str) -> str:
    """What a message says aloud: without blocks of ``<think>``, whether or not they were closed."""
    return _ANY.sub("", text).strip()
