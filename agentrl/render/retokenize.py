"""What would be lost if an episode were sent as text: how its recorded ids differ from those made of its text anew.

Nothing is ever encoded again here; servers and trainers that pass histories on as messages do it at each turn. The two
shares say how much of an episode such a path would have changed under the policy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from agentrl.errors import DataError
from agentrl.render import Renderer
from agentrl.types import Message, ToolSpec, Turn, concat_ids

__all__ = ["changed_tokens", "retok_frac", "template_frac"]


def changed_tokens(recorded: npt.NDArray[np.int32], anew: npt.NDArray[np.int32]) -> int:
    """How many of ``recorded`` lie between what both begin and what both end with; at least 1 where they differ."""
    if np.array_equal(recorded, anew):
        return 0
    size = min(recorded.size, anew.size)
    differs = np.flatnonzero(recorded[:size] != anew[:size])
    head = int(differs[0]) if differs.size else size
    rest = size - head
    differs = np.flatnonzero(recorded[::-1][:rest] != anew[::-1][:rest])
    tail = int(differs[0]) if differs.size else rest
    return max(1, recorded.size - head - tail)


def retok_frac(turns: Sequence[Turn], renderer: Renderer) -> float | None:
    """The share of an episode's sampled tokens that are not those of their own text, ``encode(decode(ids))``.

    Returns:
        From 0 to 1; None where no token was sampled. The token that ended a turn is not counted.
    """
    sampled = changed = 0
    for turn in turns:
        ids = concat_ids(turn.completion)
        if ids.size and int(ids[-1]) in renderer.stop_token_ids:
            ids = ids[:-1]
        sampled += ids.size
        whole = (
            turn.sampling is not None and not turn.sampling.stop
        )  # else the text may have been cut
        changed += min(
            ids.size,
            changed_tokens(ids, renderer.tokenize(turn.text if whole else renderer.decode(ids))),
        )
    return changed / sampled if sampled else None


def template_frac(
    context: npt.NDArray[np.int32],
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    renderer: Renderer,
) -> float:
    """The share of a turn's context that the chat template, applied to the whole conversation anew, writes otherwise.

    Args:
        context: ``[n]`` ids that the engine was given, n >= 1.
        messages: the conversation that they are.
        tools: those on offer.
        renderer: of the episode.

    Returns:
        From 0 to 1; 1 where the template cannot write the conversation at all.
    """
    try:
        anew = concat_ids(renderer.prompt(messages, tools))
    except DataError:
        return 1.0
    return changed_tokens(context, anew) / context.size
