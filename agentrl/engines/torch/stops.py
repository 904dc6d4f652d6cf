"""Stop strings: they end a completion at the token in which they become complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

_SLACK = 16


def completed_stop(
    decode: Callable[[npt.NDArray[np.int32]], str],
    sampled: npt.NDArray[np.int32],
    stop: Sequence[str],
) -> str | None:
    """The stop string that the last token completed.

    Only a tail is decoded: a string of b bytes became complete just now, so it lies within the
    last b tokens that have text; ``_SLACK`` more cover tokens without any and characters cut at
    the tail's start.
    """
    tail = 2 * max(len(string.encode()) for string in stop) + _SLACK
    text = decode(sampled[-tail:])
    return next((string for string in stop if string in text), None)
