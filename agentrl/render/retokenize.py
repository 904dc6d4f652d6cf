"""Retokenization: measures how an episode's ids differ from the ids of its re-encoded text.

Nothing is encoded again for training. Servers and trainers that exchange histories as messages do
so at each turn; the two shares show how much of an episode that would change.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentrl.errors import DataError
from agentrl.render import Renderer
from agentrl.types import Message, ToolSpec, Turn, concat_ids
from agentrl.types.arrays import I32, common_prefix


def changed_tokens(recorded: I32, reencoded: I32) -> int:
    """The number of ``recorded`` ids between the common prefix and suffix; at least 1 if they
    differ.
    """
    if np.array_equal(recorded, reencoded):
        return 0
    head = common_prefix(recorded, reencoded)
    tail = common_prefix(recorded[head:][::-1], reencoded[head:][::-1])
    return max(1, recorded.size - head - tail)


def retok_frac(turns: Sequence[Turn], renderer: Renderer) -> float | None:
    """The share of an episode's sampled tokens that differ from ``encode(decode(ids))``.

    Returns:
        From 0 to 1; None if no token was sampled. The token that ended a turn is not counted.
    """
    sampled = changed = 0
    for turn in turns:
        ids = concat_ids(turn.completion)
        if ids.size and int(ids[-1]) in renderer.stop_token_ids:
            ids = ids[:-1]
        sampled += ids.size
        # else the text may have been cut
        whole = turn.sampling is not None and not turn.sampling.stop
        changed += min(
            ids.size,
            changed_tokens(
                ids, renderer.tokenize(turn.text if whole else renderer.decode(ids))
            ),
        )
    return changed / sampled if sampled else None


def unknown_frac(turns: Sequence[Turn], renderer: Renderer) -> float | None:
    """The share of an episode's sampled tokens that the tokenizer has no text for: ids of a padded
    vocabulary.

    Returns:
        From 0 to 1; None if no token was sampled.
    """
    made = [concat_ids(turn.completion) for turn in turns]
    sampled = sum(ids.size for ids in made)
    unknown = sum(int(np.count_nonzero(ids >= renderer.vocab_size)) for ids in made)
    return unknown / sampled if sampled else None


def template_frac(
    context: I32,
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    renderer: Renderer,
) -> float:
    """The share of a turn's context that a new rendering of the whole conversation changes.

    Args:
        context: ``[n]`` the engine's input ids, n >= 1.
        messages: their conversation.
        tools: the tools on offer.
        renderer: the episode's renderer.

    Returns:
        From 0 to 1; 1 if the template cannot write the conversation at all.
    """
    try:
        ids = concat_ids(renderer.prompt(messages, tools))
    except DataError:
        return 1.0
    return changed_tokens(context, ids) / context.size
