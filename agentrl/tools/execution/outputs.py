"""Outputs: a tool's output as text that the model can read, within its limits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from agentrl.errors import DataError, ToolError
from agentrl.tools.base import Tool, merged
from agentrl.tools.context import ToolOutput
from agentrl.types import Image, ToolErrorKind
from agentrl.types.user_code.values import finite_number, shown

MAX_PIECES_CHARS = 2**20
"""Characters of an output in pieces after which it is ended."""


def error_output(kind: ToolErrorKind, text: str) -> ToolOutput:
    """The output of a call that went wrong."""
    return ToolOutput(f"Error: {text}", error=kind)


def after_pieces(pieces: Sequence[str | ToolOutput], error: ToolOutput) -> ToolOutput:
    """What came before an error, and the error behind it."""
    if not pieces:
        return error
    told = "The output above came before this error.\n"
    came = merged(pieces)
    gap = "\n" if came.content and not str(came.content).endswith("\n") else ""
    return merged([came, f"{gap}{told}", error])


def checked_output(output: object, name: str) -> ToolOutput:
    """What a tool gave, as a ToolOutput.

    Raises:
        ToolError: it is none, its reward is no finite number, or its metrics have no names.
    """
    output = output if isinstance(output, ToolOutput) else ToolOutput(output)  # type: ignore[arg-type]
    if not isinstance(output.content, (str, bytes)):
        raise ToolError(
            f"tool {name!r}: call must give a str or a ToolOutput of one, got "
            f"{shown(output.content)}"
        )
    if not isinstance(output.metrics, Mapping | None):
        raise ToolError(
            f"tool {name!r}: ToolOutput.metrics must be a mapping of names to numbers, got "
            f"{shown(output.metrics)}"
        )
    if isinstance(output.reward, bool) or finite_number(output.reward) is None:
        raise ToolError(
            f"tool {name!r}: ToolOutput.reward must be a finite number, got "
            f"{shown(output.reward)}; leave it out where there is none"
        )
    return output


def with_images_read(output: ToolOutput, name: str) -> ToolOutput:
    """The output with each image an ``Image``; a fault of the tool where one cannot be read."""
    try:
        images = tuple(
            Image.read(image, f"image {number}")
            for number, image in enumerate(output.images)
        )
    except DataError as error:
        return error_output(
            "exception", f"{name} gave an image that cannot be used: {error}"
        )
    return replace(output, images=images)


def valid_text(content: str | bytes) -> str:
    """``content`` as text that UTF-8 can carry; what is no character becomes U+FFFD."""
    if isinstance(content, bytes):
        return content.decode("utf-8", "replace")
    try:
        content.encode("utf-8")
    except UnicodeEncodeError:
        # Lone surrogates, as os.fsdecode makes them.
        return content.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return content


def clip_text(text: str, max_chars: int) -> tuple[str, bool]:
    """At most ``max_chars`` characters of ``text``: its head and its tail, with a marker between
    that comes on top.

    Returns:
        The text, and whether anything was left out.
    """
    return _clipped(text, range(1, len(text) + 1), max_chars, "characters")


def clip_tokens(text: str, ends: Sequence[int], max_tokens: int) -> tuple[str, bool]:
    """At most ``max_tokens`` tokens of ``text``, as ``clip_text`` does it.

    Args:
        text: whole.
        ends: for each token, the number of characters up to its end.
        max_tokens: of head and tail together.
    """
    return _clipped(text, ends, max_tokens, "tokens")


def _clipped(text: str, ends: Sequence[int], most: int, unit: str) -> tuple[str, bool]:
    left_out = len(ends) - most
    if left_out <= 0:
        return text, False
    tail = most // 2
    marker = f"\n[... {left_out} of {len(ends)} {unit} left out ...]\n"
    return text[: ends[most - tail - 1]] + marker + text[ends[len(ends) - tail - 1] :], True


def offer_text(new: Iterable[Tool], offered: Iterable[str]) -> str:
    """What the model is told where the tools on offer change to ``offered``."""
    lines = [f"The tools on offer are now: {', '.join(offered) or 'none'}."]
    lines += [json.dumps(tool.spec.openai(), ensure_ascii=False) for tool in new]
    return "\n".join(lines)
