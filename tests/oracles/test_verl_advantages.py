"""Advantages and what they are made of against verl 0.9.1: estimators, KL in the reward, its
controller, PF-PPO; and that docs/coming-from-verl.md names all that verl has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from agentrl.algorithms import make_algorithm as make
from agentrl.algorithms.functions.credit import (
    greedy_baseline_credit,
    group_advantages,
    leave_one_out,
    rank_weights,
)
from agentrl.algorithms.functions.returns import kl_reward
from agentrl.algorithms.functions.token_terms import KL_COEF, adapted_kl
from agentrl.types import Stat, Stats
from tests.algorithms.made import rewards_of, token_credit
from tests.oracles.cases import CLOSE, GROUP, MASK, Case, make_case, spread, totals
from tests.oracles.conftest import Ask

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs/coming-from-verl.md"


@pytest.fixture(scope="module")
def case() -> Case:
    return make_case()


@pytest.mark.invariant
def test_estimators_of_a_reward_a_trajectory(verl: Ask, case: Case) -> None:
    baseline = np.linspace(-1, 2, 6)
    reward = totals(case).reward
    rewards = replace(totals(case), baseline=baseline)
    ours = {
        "remax": greedy_baseline_credit(rewards, {}).trajectory,
        "rloo_vectorized": leave_one_out(reward, GROUP),
        "grpo_vectorized": group_advantages(reward, GROUP, eps=1e-6),
        "grpo": group_advantages(reward, GROUP, scale_rewards="none"),
    }
    settings = {
        "remax": {"reward_baselines": baseline},
        "grpo": {"norm_adv_by_std_in_grpo": False},
    }
    given = {"rewards": case.rewards, "mask": MASK, "index": GROUP}
    answers = verl(
        [("estimator", {"name": name, **given, **settings.get(name, {})}) for name in ours]
    )
    for (name, own), answer in zip(ours.items(), answers, strict=True):
        np.testing.assert_allclose(
            spread(own), answer["advantages"] * MASK, **CLOSE, err_msg=name
        )


def test_groups_of_one_have_another_baseline(verl: Ask) -> None:
    # verl: RLOO's baseline of a lone rollout is 0, so the reward is its advantage; ours refuses it
    rewards, mask = np.array([[2.0], [1.0], [3.0]]), np.ones((3, 1))
    index = np.array([0, 1, 1])
    (answer,) = verl([("estimator", {"name": "rloo", "rewards": rewards, "mask": mask,
                                     "index": index})])  # fmt: skip
    assert answer["advantages"][:, 0].tolist() == [2.0, -2.0, 2.0]
    with pytest.raises(ValueError, match="one finished trajectory and no baseline"):
        leave_one_out(rewards[:, 0], index)


def test_the_kl_off_the_reward(verl: Ask, case: Case) -> None:
    (answer,) = verl(
        [("reward_less_kl", {"coef": 0.3, "rewards": case.rewards, "old": case.old_log_prob,
                             "reference": case.other})]
    )  # fmt: skip
    credit = token_credit(
        torch.from_numpy(MASK),
        reward=torch.from_numpy(case.rewards),
        old_logprobs=torch.from_numpy(case.old_log_prob),
        ref_logprobs=torch.from_numpy(case.other),
    )
    found = kl_reward(credit, kl_coef=0.3).numpy()
    np.testing.assert_allclose(found * MASK, answer["rewards"] * MASK, **CLOSE)
    assert not found[MASK == 0].any()  # where verl leaves what the mask takes off later


def test_an_adaptive_kl_counts_steps_where_verl_counts_samples(verl: Ask) -> None:
    kls, samples, horizon = [0.05, 0.2, 3.0, 0.1, 0.0], 6, 10
    (answer,) = verl(
        [("adaptive_kl", {"coef": 0.01, "target": 0.1, "horizon": horizon * samples,
                          "samples": samples, "kls": kls})]
    )  # fmt: skip
    state, found = {KL_COEF: 0.01}, []
    for one in kls:
        stats = Stats({"policy/kl_ref": Stat.of([one])})
        state = dict(adapted_kl(state, stats, target=0.1, horizon=horizon))
        found.append(state[KL_COEF])
    np.testing.assert_allclose(found, answer["coef"], **CLOSE)


def test_pf_ppo_trains_once_what_verl_draws_again(verl: Ask) -> None:
    # verl resamples the batch, the best and worst of it with equal chances; ours keeps those of
    # each group, each once. With one group both train the same two
    reward = np.array([0.5, 2.0, 0.25, -1.0, 1.0, 0.75])
    (answer,) = verl([("resampled", {"rewards": reward, "method": "max_min"})])
    weights = rank_weights(rewards_of(reward, np.zeros(6, np.int64)), keep="best_worst")
    assert set(answer["rewards"]) <= set(reward[weights > 0])
    assert weights.tolist() == [0, 1, 0, 1, 0, 0]


def test_the_page_names_all_that_verl_has(verl: Ask) -> None:
    (names,) = verl([("names", {})])
    page = PAGE.read_text(encoding="utf-8")
    missing = [
        f"{kind}: {name}"
        for kind, own in names.items()
        for name in own
        if f"`{name}`" not in page
    ]
    assert not missing
    assert "gae" in names["estimators"]
    assert "gigpo" not in names["estimators"]  # ours alone
    for name in ("rloo", "remax", "reinforce_plus_plus"):
        assert make(name).name in names["estimators"]
