"""Health spec: from where on a run's numbers are told as an alert."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agentrl.types.section import Count, Fraction, Positive, Section

Factor = Annotated[float, Field(gt=1)]


class HealthSpec(Section):
    """When the numbers of a stage that learns by rewards become an alert (docs/health.md). Each
    threshold may be null, which turns its alert off."""

    window: Count = 10
    """Steps that a mean is taken over. The first so many are what later ones are compared with."""
    entropy_min_frac: Fraction | None = 0.2
    """``entropy_collapse``: least entropy of the policy, as a share of its first steps'."""
    ratio_jump: Positive | None = 0.05
    """``ratio_jump``: distance of the mean probability ratio from 1 that a jump has at least."""
    mismatch_jump: Positive | None = 0.02
    """``mismatch_jump``: mean difference of sampler and trainer, in nats, that a jump has at
    least."""
    jump_factor: Factor = 4.0
    """A jump is so many times the median of the steps before it."""
    reward_stuck_steps: Annotated[int, Field(ge=4)] | None = 100
    """``reward_stuck``: steps without a rise of the reward. A stage that solves its tasks is not
    stuck."""
    no_signal_max_frac: Fraction | None = 0.9
    """``no_signal``: greatest share of groups whose rewards are all equal."""
    tool_calls_min_frac: Fraction | None = 0.2
    """``tool_collapse``: least number of tool calls, as a share of the first steps'."""
    length_max_factor: Factor | None = 3.0
    """``length_explosion``: greatest length of a response, as a multiple of the first steps'."""
    loop_lag_max_s: Positive | None = 2.0
    """``loop_blocked``: most seconds that the event loop of the episodes may stand still at
    once."""
    unknown_max_frac: Fraction | None = 0.0
    """``unknown_tokens``: greatest share of sampled tokens that the tokenizer has no text for."""
    stale_max_frac: Fraction | None = 0.02
    """``lost_by_age``: greatest share of the groups issued in the last ``window`` steps that
    ``rollout.on_stale`` gave up for their age, or of the tokens that it masked."""
    information_min_frac: Fraction | None = 0.25
    """``template_collapse``: least ``answer/question_mi``, as a share of the first steps', while
    entropy has not collapsed."""
