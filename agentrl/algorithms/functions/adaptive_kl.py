"""Adaptive KL: moves the weight of a KL term towards a target (arXiv:1909.08593, sec. 2.2)."""

from __future__ import annotations

from agentrl.algorithms.records import AlgorithmState
from agentrl.types import Stats

KL_COEF = "kl_coef"
"""The current weight, in an algorithm's state."""


def adapted_kl(
    state: AlgorithmState, stats: Stats, *, target: float, horizon: int
) -> AlgorithmState:
    """The state with its weight times 1 + clip(KL / target - 1, -0.2, 0.2) / horizon.

    Args:
        state: with ``KL_COEF``.
        stats: of the step; one without an update leaves the weight.
        target: nats.
        horizon: steps.
    """
    kl = stats.get("policy/kl_ref")
    if kl is None or not kl.count:
        return state
    error = min(max(kl.mean / target - 1.0, -0.2), 0.2)
    return {**state, KL_COEF: state[KL_COEF] * (1.0 + error / horizon)}
