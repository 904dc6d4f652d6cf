"""Metrics: names and values of a step's metrics, their sinks, and the terminal's display."""

from __future__ import annotations

from agentrl.metrics.display import (
    PAIR_COLUMNS,
    RL_COLUMNS,
    SFT_COLUMNS,
    DisplayColumn,
    StepDisplay,
    format_duration,
)
from agentrl.metrics.names import (
    NAMES,
    REWARD_MODEL_PART,
    VERL_NAMES,
    describe,
    with_verl_names,
)
from agentrl.metrics.rollout import correctness, ended_metrics, no_signal, rollout_metrics
from agentrl.metrics.sinks import JsonlSink, Sink, Sinks
from agentrl.metrics.timing import PhaseTimer, RolloutRates, tokens_per_s

__all__ = [
    "NAMES",
    "PAIR_COLUMNS",
    "REWARD_MODEL_PART",
    "RL_COLUMNS",
    "SFT_COLUMNS",
    "VERL_NAMES",
    "DisplayColumn",
    "JsonlSink",
    "PhaseTimer",
    "RolloutRates",
    "Sink",
    "Sinks",
    "StepDisplay",
    "correctness",
    "describe",
    "ended_metrics",
    "format_duration",
    "no_signal",
    "rollout_metrics",
    "tokens_per_s",
    "with_verl_names",
]
