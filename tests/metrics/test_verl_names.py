"""Under verl's names stand verl's quantities, or nothing."""

from __future__ import annotations

import pytest

from agentrl.metrics import NAMES, VERL_NAMES, with_verl_names

UPDATE = {"policy/kl_old_k1": -0.5, "policy/loss": 3.0}


def test_a_turn_of_ours_is_two_of_verls() -> None:
    # verl counts the prompt, each assistant's message and each observation between: prompt a obs a
    # is 4
    assert with_verl_names({"turns/mean": 2.0, "reward/code/mean": 1.0}) == {
        "turns/mean": 2.0,
        "num_turns/mean": 4.0,
        "reward/code/mean": 1.0,
    }


def test_pg_clipfrac_is_both_bounds_together() -> None:
    named = with_verl_names(
        UPDATE | {"policy/clip_frac_low": 0.1, "policy/clip_frac_high": 0.25}
    )
    assert named["actor/pg_clipfrac"] == pytest.approx(0.35)


def test_pg_clipfrac_lower_is_the_dual_clips_alone() -> None:
    assert "actor/pg_clipfrac_lower" not in with_verl_names(
        UPDATE | {"policy/clip_frac_low": 0.1}
    )
    assert (
        with_verl_names(UPDATE | {"policy/clip_frac_dual": 0.2})["actor/pg_clipfrac_lower"]
        == 0.2
    )


def test_ppo_kl_is_signed() -> None:
    assert with_verl_names(UPDATE)["actor/ppo_kl"] == -0.5


def test_pg_loss_has_no_kl_term() -> None:
    assert with_verl_names(UPDATE)["actor/pg_loss"] == 3.0
    assert with_verl_names(UPDATE | {"policy/pg_loss": 2.0})["actor/pg_loss"] == 2.0


def test_imitation_and_reward_models_have_no_actors_metrics() -> None:
    values = {
        "policy/loss": 1.0,
        "policy/entropy": 1.0,
        "optim/lr": 1.0,
        "optim/grad_norm": 1.0,
        "time/update_s": 1.0,
    }
    assert with_verl_names(values) == values


def test_every_name_is_made_of_ours() -> None:
    ours = {own for parts in VERL_NAMES.values() for own in parts}
    assert {own for own in ours if not own.startswith("time/")} <= NAMES.keys()


def test_what_verl_means_otherwise_has_no_name_of_its() -> None:
    # its clip_ratio is of responses of the maximal length, its throughput is by GPU, its
    # old_log_prob a phase alone
    named = with_verl_names(
        {"length/truncated_frac": 0.5, "perf/tokens_per_s": 9.0, "time/logprobs_s": 1.0}
    )
    assert len(named) == 3
