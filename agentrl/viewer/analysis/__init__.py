"""Analysis: what a run's trajectories show beside each other: changes, parts, differences."""

from __future__ import annotations

from agentrl.viewer.analysis.behaviour import Behaviour, behaviour
from agentrl.viewer.analysis.blame import Blame, BlameRow, blame, logged_value
from agentrl.viewer.analysis.episode import Episode, read_episodes
from agentrl.viewer.analysis.findings import alert_link, findings
from agentrl.viewer.analysis.group_view import group_view
from agentrl.viewer.analysis.retokenise import Retokenised, retokenise
from agentrl.viewer.analysis.step_range import StepRange
from agentrl.viewer.analysis.task_view import task_view
from agentrl.viewer.analysis.trained_tokens import (
    NotRecordedError,
    TrainedTokens,
    trained_tokens,
)
from agentrl.viewer.analysis.turn_diff import turn_diff

__all__ = [
    "Behaviour",
    "Blame",
    "BlameRow",
    "Episode",
    "NotRecordedError",
    "Retokenised",
    "StepRange",
    "TrainedTokens",
    "alert_link",
    "behaviour",
    "blame",
    "findings",
    "group_view",
    "logged_value",
    "read_episodes",
    "retokenise",
    "task_view",
    "trained_tokens",
    "turn_diff",
]
