"""Returns: of each trained token, in the order of its trajectory's turns, over all else.

Tool and template tokens between two turns take no step, and a trajectory goes on into its next
sample (docs/tokens.md, Batch).

Axes: T packed tokens of a shard, J trajectories with trained tokens, L trained tokens of the
longest of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from agentrl.algorithms.functions.losses import given
from agentrl.algorithms.functions.token_terms import KL_COEF, k1
from agentrl.algorithms.records import Advantages, TokenCredit

Bootstrap = Literal["none", "infrastructure", "all"]


@dataclass(frozen=True, slots=True, eq=False)
class TurnOrder:
    """The trained tokens of a shard by trajectory.

    Args:
        place: ``[J, L]`` int64, positions in the shard, padded by 0.
        is_token: ``[J, L]`` bool, false for padding.
        length: ``[J]`` int64, trained tokens.
    """

    place: Tensor
    is_token: Tensor
    length: Tensor

    def rows(self, column: Tensor) -> Tensor:
        """``[J, L]`` of a ``[T]`` column; 0 where padded."""
        return torch.where(self.is_token, column[self.place], torch.zeros_like(column[:1]))

    def column(self, rows: Tensor, like: Tensor) -> Tensor:
        """``[T]`` of ``[J, L]``, zeros for other tokens."""
        column = torch.zeros_like(like, dtype=rows.dtype)
        column[self.place[self.is_token]] = rows[self.is_token]
        return column


def turn_order(credit: TokenCredit) -> TurnOrder:
    """The trained tokens of a shard, each trajectory's in the order of its turns."""
    trained = torch.nonzero(credit.mask).squeeze(1)
    trained = trained[torch.argsort(credit.turn_row[trained], stable=True)]
    # the turns of a trajectory are neighbours, since their rows grow within it
    _, length = torch.unique_consecutive(credit.trajectory_row[trained], return_counts=True)
    longest = int(length.max()) if length.numel() else 0
    steps = torch.arange(longest, device=trained.device)
    is_token = steps[None, :] < length[:, None]
    place = torch.zeros(is_token.shape, dtype=torch.int64, device=trained.device)
    place[is_token] = trained
    return TurnOrder(place, is_token, length)


def discounted_returns(credit: TokenCredit, *, discount: float, reward: Tensor) -> Tensor:
    """``[T]`` returns G_t = r_t + discount · G_(t+1) of trained tokens; zeros elsewhere.

    Args:
        credit: of the shard.
        discount: a token.
        reward: ``[T]``.
    """
    order = turn_order(credit)
    # In float64, since a return adds up as many terms as the trajectory has tokens.
    rewards = order.rows(reward.double())
    returns = torch.zeros_like(rewards)
    following = rewards.new_zeros(rewards.shape[0])
    for step in reversed(range(rewards.shape[1])):
        following = torch.where(
            order.is_token[:, step], rewards[:, step] + discount * following, following
        )
        returns[:, step] = following
    return order.column(returns.float(), credit.mask)


def return_advantages(
    credit: TokenCredit, *, discount: float, kl_coef: float = 0.0
) -> Advantages:
    """Each token's discounted return, from which the KL to the reference is taken token by token
    (arXiv:2501.03262, eq. 6 to 8).
    """
    reward = kl_reward(credit, kl_coef=kl_coef)
    return Advantages(discounted_returns(credit, discount=discount, reward=reward))


def kl_reward(credit: TokenCredit, *, kl_coef: float) -> Tensor:
    """``[T]`` credits that fall due, less the weighted k1 of each trained token; the algorithm's
    state has the current weight where it is adapted.
    """
    if kl_coef == 0:
        return credit.reward
    weight = credit.state.get(KL_COEF, kl_coef)
    old = given(credit.old_logprobs, "old_logprobs")
    reference = given(credit.ref_logprobs, "ref_logprobs")
    kl = k1(old, reference)
    return credit.reward - torch.where(credit.mask != 0, weight * kl, torch.zeros_like(kl))


def generalized_advantages(
    credit: TokenCredit,
    *,
    discount: float,
    lam: float | Tensor,
    bootstrap: Bootstrap,
    reward: Tensor,
) -> Tensor:
    """``[T]`` generalised advantage estimates (arXiv:1506.02438, eq. 16); zeros off the mask.

    δ_t = r_t + discount · V_(t+1) - V_t and A_t = δ_t + discount · λ · A_(t+1).

    Args:
        credit: of the shard, with values.
        discount: a token.
        lam: λ, or ``[T]`` one for each token, equal within a trajectory.
        bootstrap: behind which ends a value stands: ``none``; those that were none of the policy's
            doing; or ``all`` that a limit cut. Behind any other end it is 0, or running out a limit
            would pay.
        reward: ``[T]``.
    """
    order = turn_order(credit)
    values = order.rows(given(credit.values, "values").double())
    final = order.rows(given(credit.final_values, "final_values").double()).sum(1)
    ends = {"none": None, "infrastructure": credit.interrupted, "all": credit.cut}[
        bootstrap
    ]
    first = order.place[:, :1].squeeze(1)
    final = (
        torch.zeros_like(final) if ends is None else torch.where(ends[first], final, 0.0)
    )
    decay = torch.as_tensor(lam, dtype=torch.float64, device=values.device)
    decay = decay[first] if decay.ndim else decay.expand(final.shape)
    rewards = order.rows(reward.double())
    advantages = torch.zeros_like(rewards)
    next_value, following = final, torch.zeros_like(final)
    for step in reversed(range(rewards.shape[1])):
        is_token = order.is_token[:, step]
        delta = rewards[:, step] + discount * next_value - values[:, step]
        # Padding lies behind the tokens: the value at the end passes through it unchanged.
        following = torch.where(is_token, delta + discount * decay * following, following)
        next_value = torch.where(is_token, values[:, step], next_value)
        advantages[:, step] = following
    dtype = given(credit.values, "values").dtype
    return order.column(advantages.to(dtype), credit.mask)


def critic_advantages(
    credit: TokenCredit,
    *,
    discount: float,
    lam: float,
    bootstrap: Bootstrap,
    lam_value: float | None = None,
    length_alpha: float | None = None,
    kl_coef: float = 0.0,
) -> Advantages:
    """Generalised advantages of rewards less their KL, and what the critic's values should be: the
    advantages plus the values (arXiv:1506.02438).

    Args:
        credit: of the shard, with values.
        discount, lam, bootstrap: see ``generalized_advantages``.
        lam_value: λ of the returns, where it is another than that of the advantages (decoupled GAE,
            arXiv:2504.05118, sec. 4.1).
        length_alpha: α of a λ for each trajectory of l trained tokens in the place of ``lam``:
            max(0, 1 - 1 / (α · l)) (arXiv:2504.05118, eq. 9).
        kl_coef: see ``kl_reward``.
    """
    reward = kl_reward(credit, kl_coef=kl_coef)
    values = given(credit.values, "values")

    def estimated(decay: float | Tensor) -> Tensor:
        return generalized_advantages(
            credit, discount=discount, lam=decay, bootstrap=bootstrap, reward=reward
        )

    own = (
        lam if length_alpha is None else length_adaptive_lambda(credit, alpha=length_alpha)
    )
    advantages = estimated(own)
    returns = advantages if lam_value is None else estimated(lam_value)
    return Advantages(advantages, torch.where(credit.mask != 0, returns + values, 0.0))


def length_adaptive_lambda(credit: TokenCredit, *, alpha: float) -> Tensor:
    """``[T]`` max(0, 1 - 1 / (alpha · l)) for a trajectory of l trained tokens."""
    order = turn_order(credit)
    lam = (1 - 1 / (alpha * order.length.double())).clamp(min=0.0)
    return order.column(lam[:, None].expand(order.place.shape).float(), credit.mask)


def reverse_kl_advantages(credit: TokenCredit) -> Advantages:
    """log π_ref - log π_old of each trained token: minus its sampled reverse KL."""
    old = given(credit.old_logprobs, "old_logprobs")
    reference = given(credit.ref_logprobs, "ref_logprobs")
    return Advantages(torch.where(credit.mask != 0, reference - old, torch.zeros_like(old)))
