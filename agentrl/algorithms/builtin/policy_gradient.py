"""Policy gradient: what the algorithms that learn from rewards of episodes share.

Each of them is this record with a credit, a loss or advantages of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from agentrl.algorithms.algorithm_spec import AlgorithmSpec
from agentrl.algorithms.functions.corrections import chosen_correction, next_correction
from agentrl.algorithms.functions.credit import (
    keep_informative_group,
    overlong_penalty,
)
from agentrl.algorithms.functions.losses import (
    broadcast_to_tokens,
    with_terms,
)
from agentrl.algorithms.functions.reductions import reduction_of
from agentrl.algorithms.functions.token_terms import KL_COEF, adapted_kl
from agentrl.algorithms.records import (
    AlgorithmState,
    Credit,
    PolicyInputs,
    Rewards,
    TokenLoss,
    ValueInputs,
)
from agentrl.algorithms.settings.policy_gradient import (
    Overlong,
    PolicyGradientSettings,
)
from agentrl.types import SegmentKind, Stats
from agentrl.types.section import Section

T = TypeVar("T")


def policy_gradient(
    name: str,
    settings: PolicyGradientSettings,
    *,
    credit: Callable[[Rewards, AlgorithmState], Credit],
    loss: Callable[[PolicyInputs], TokenLoss],
    value_loss: Callable[[ValueInputs], TokenLoss] | None = None,
    kl_in_loss: bool = True,
) -> AlgorithmSpec:
    """The record of ``settings``.

    Args:
        name: of the algorithm.
        settings: whole.
        credit: of trajectories and turns; what a length costs is off their rewards already.
        loss: by token, without KL and entropy.
        value_loss: of a critic.
        kl_in_loss: else the algorithm takes the KL off its rewards.
    """
    kl_coef = settings.kl_coef if kl_in_loss else 0.0
    terms = {"kl": kl_coef > 0, "entropy": settings.entropy_coef > 0}
    correction = settings.rollout_correction
    return AlgorithmSpec(
        name=name,
        keep_group=bound(keep_informative_group, settings),
        credit=partial(shaped, credit=credit, overlong=settings.overlong),
        reduction=reduction_of(settings.reduction, settings.constant_tokens),
        policy_loss=bound(with_terms, settings, loss=loss, kl_coef=kl_coef),
        value_loss=value_loss,
        advantages=broadcast_to_tokens,
        trains=frozenset({SegmentKind.POLICY}),
        correction=partial(chosen_correction, settings=correction)
        if settings.chooses_correction or correction.is_active
        else None,
        always_corrects=correction.is_active,
        needs=settings.needs,
        old_logprobs=settings.old_logprobs,
        group_size_min=settings.group_size_min,
        terms=tuple(one for one, is_used in terms.items() if is_used),
        max_staleness=0 if settings.on_policy_only else None,
        initial_state={} if settings.kl_target is None else {KL_COEF: settings.kl_coef},
        next_state=partial(after_step, settings=settings),
    )


def after_step(
    state: AlgorithmState, stats: Stats, *, settings: PolicyGradientSettings
) -> AlgorithmState:
    """The state with the KL's coefficient and the correction for the next step."""
    if settings.kl_target is not None:
        state = adapted_kl(
            state, stats, target=settings.kl_target, horizon=settings.kl_horizon
        )
    if settings.chooses_correction:
        state = next_correction(state, stats, settings=settings.rollout_correction)
    return state


def shaped(
    rewards: Rewards,
    state: AlgorithmState,
    *,
    credit: Callable[[Rewards, AlgorithmState], Credit],
    overlong: Overlong,
) -> Credit:
    """``credit`` of the rewards less the penalty for length."""
    if overlong.max_tokens is not None:
        share = overlong_penalty(
            rewards.num_tokens,
            max_tokens=overlong.max_tokens,
            buffer_tokens=overlong.buffer_tokens or overlong.max_tokens,
        )
        rewards = replace(rewards, reward=rewards.reward - overlong.penalty * share)
    return credit(rewards, state)


def bound(function: Callable[..., T], settings: Section, **more: Any) -> Callable[..., T]:
    """A function with its keyword arguments: those of ``more``, and for the others the settings of
    the same names."""
    named = {
        name: getattr(settings, name)
        for name, one in inspect.signature(function).parameters.items()
        if one.kind is one.KEYWORD_ONLY and name not in more
    }
    return partial(function, **named, **more)
