"""DPPO: bounds on the divergence from the sampler, not on the ratio (arXiv:2602.04879)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from agentrl.algorithms.algorithm_spec import AlgorithmSpec
from agentrl.algorithms.builtin.policy_gradient import group_credit, policy_gradient
from agentrl.algorithms.functions.corrections import no_correction
from agentrl.algorithms.functions.losses import divergence_policy_loss
from agentrl.algorithms.settings import DPPOSettings


def make_dppo(settings: DPPOSettings) -> AlgorithmSpec:
    """DPPO with ``settings``; its ratio makes up for the sampler, so it needs no π_old."""
    loss = partial(
        divergence_policy_loss,
        divergence=settings.divergence,
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
        ratio_cap=settings.ratio_cap,
    )
    spec = policy_gradient("dppo", settings, credit=group_credit(settings), loss=loss)
    return replace(spec, old_logprobs="current", correction=no_correction)
