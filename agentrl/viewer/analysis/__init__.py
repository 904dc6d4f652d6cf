"""Analysis: what a run's trajectories show beside each other: changes, parts, differences."""

from __future__ import annotations

from agentrl.viewer.analysis.behaviour import Behaviour, Change, behaviour
from agentrl.viewer.analysis.blame import Blame, BlameRow, blame, logged_value
from agentrl.viewer.analysis.episode import Episode, read_episodes
from agentrl.viewer.analysis.findings import Finding, alert_link, findings
from agentrl.viewer.analysis.group_view import GroupView, group_view
from agentrl.viewer.analysis.retokenise import Retokenised, retokenise
from agentrl.viewer.analysis.step_range import StepRange
from agentrl.viewer.analysis.task_view import TaskView, task_view
from agentrl.viewer.analysis.trained_tokens import (
    NotRecordedError,
    TrainedTokens,
    policy_tokens,
    trained_tokens,
)
from agentrl.viewer.analysis.turn_diff import turn_diff

__all__ = [
    "Behaviour",
    "Blame",
    "BlameRow",
    "Change",
    "Episode",
    "Finding",
    "GroupView",
    "NotRecordedError",
    "Retokenised",
    "StepRange",
    "TaskView",
    "TrainedTokens",
    "alert_link",
    "behaviour",
    "blame",
    "findings",
    "group_view",
    "logged_value",
    "policy_tokens",
    "read_episodes",
    "retokenise",
    "task_view",
    "trained_tokens",
    "turn_diff",
]
