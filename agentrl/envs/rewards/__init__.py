"""Rewards: the built-in reward functions.

Those with a name in ``BUILT_IN`` are reached by it in ``reward.functions``; what they need is
imported when they are.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.envs.rewards.answers import exact_answer, stated_answer

BUILT_IN: Mapping[str, str] = {
    name: f"agentrl.envs.rewards.{module}:{name}"
    for module, names in {
        "answers": ("exact_answer", "exact_match", "f1", "math_answer"),
        "unit_tests": ("unit_tests",),
        "shape": ("json_schema", "text_format", "length_cost", "tool_cost"),
        "judge": ("judge",),
    }.items()
    for name in names
}
"""Where the built-in reward functions are, by name."""

__all__ = ["BUILT_IN", "exact_answer", "stated_answer"]
