"""Costs: what length and tool calls take from the reward; both are 0 or below."""

from __future__ import annotations

from agentrl.envs.view import EpisodeView
from agentrl.errors import ConfigError
from agentrl.types import SegmentKind


def length_cost(view: EpisodeView, *, free: int, full: int) -> float:
    """0.0 up to ``free`` sampled tokens, then linearly down to -1.0 at ``full`` and beyond.

    Args:
        view: the episode.
        free: tokens of the policy that cost nothing.
        full: tokens that cost 1.

    Raises:
        ConfigError: not 0 <= free < full.
    """
    if not 0 <= free < full:
        raise ConfigError(f"length_cost needs 0 <= free < full, got free={free} and full={full}")
    tokens = sum(
        len(segment)
        for turn in view.turns
        for segment in turn.completion
        if segment.kind is SegmentKind.POLICY
    )
    # No -0.0.
    return 0.0 - min(max(tokens - free, 0) / (full - free), 1.0)


def tool_cost(view: EpisodeView, *, free: int = 0, failed_only: bool = False) -> float:
    """-1.0 for each call of a tool beyond the ``free`` first ones.

    Args:
        view: the episode.
        free: calls that cost nothing.
        failed_only: count only calls that were answered with an error, unreadable ones too.
    """
    calls = [record for turn in view.turns for record in turn.calls]
    if failed_only:
        calls = [
            one
            for one in calls
            if one.call is None or (one.result is not None and one.result.error)
        ]
    return 0.0 - max(len(calls) - free, 0)
