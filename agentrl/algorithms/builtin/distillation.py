"""On-policy distillation: each sampled token is worth what a teacher thinks more of it than the
policy did."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from agentrl.algorithms.algorithm_spec import AlgorithmSpec
from agentrl.algorithms.builtin.policy_gradient import clipped_loss, policy_gradient
from agentrl.algorithms.builtin.sft import keep_all
from agentrl.algorithms.functions.returns import reverse_kl_advantages
from agentrl.algorithms.records import AlgorithmState, Credit, Rewards
from agentrl.algorithms.settings import DistillationSettings


def make_distillation(settings: DistillationSettings) -> AlgorithmSpec:
    """The policy's own tokens with minus the reverse KL of each as its advantage
    (arXiv:2306.13649, sec. 3.1, sampled); the teacher is the reference."""
    spec = policy_gradient(
        "distillation",
        settings,
        credit=no_reward,
        loss=clipped_loss(settings),
        kl_in_loss=False,
    )
    return replace(spec, keep_group=keep_all, advantages=reverse_kl_advantages)


def no_reward(rewards: Rewards, state: AlgorithmState) -> Credit:
    """Zeros: rewards are metrics alone."""
    return Credit(np.zeros(rewards.reward.shape), np.zeros(rewards.turn_reward.shape))
