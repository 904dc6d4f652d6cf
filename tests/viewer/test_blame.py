"""Blame: parts that sum to the logged number, and the planted one first."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from agentrl.errors import DataError
from agentrl.viewer.analysis.blame import TrainedTokens, blame, logged_value


def trained(
    name: str, *, turns: tuple[int, ...], **arrays: tuple[float, ...] | np.ndarray
) -> TrainedTokens:
    """Policy tokens of some turns, ten tokens of context before each turn."""
    owners = np.array(turns)
    positions = np.arange(owners.size) + 10 * (owners + 1)
    sampled = np.asarray(arrays.pop("rollout", np.zeros(owners.size)), dtype=np.float64)
    named: Mapping[str, np.ndarray] = {
        key: np.asarray(value) for key, value in arrays.items()
    }
    return TrainedTokens(name, positions, owners, positions * 2, sampled, named)


def step(seed: int = 0) -> list[TrainedTokens]:
    """A step of 24 trajectories of 300 tokens, each with a token in five not trained."""
    rng = np.random.default_rng(seed)
    made = []
    mask = rng.random((24, 300)) > 0.2
    weight = mask / mask.sum()
    for index in range(24):
        own = {
            "loss_weight": weight[index].astype(np.float32),
            "token_loss": rng.normal(size=300).astype(np.float32),
            "rollout": rng.normal(-1.0, 0.1, 300),
            "clipped": rng.integers(0, 3, 300).astype(np.int8),
            "entropy": rng.random(300),
        }
        own["old_logprobs"] = own["rollout"] + rng.normal(0, 1e-3, 300)
        for name in ("token_loss", "old_logprobs", "entropy"):
            own[name] = np.where(mask[index], own[name], np.nan)
        made.append(trained(f"{index}-0-0", turns=tuple(np.repeat([0, 1, 2], 100)), **own))
    return made


def test_the_parts_of_the_loss_sum_to_it_at_each_level() -> None:
    own = step()
    logged = sum(
        float(np.nansum(t.arrays["loss_weight"].astype(float) * t.arrays["token_loss"]))
        for t in own
    )

    for level in ("token", "turn", "trajectory"):
        found = blame(own, "loss", level, logged=logged, limit=10**6)
        assert found.total == pytest.approx(found.logged, abs=1e-6)
        assert sum(row.value for row in found.rows) == pytest.approx(found.total, abs=1e-6)
        assert sum(row.share for row in found.rows) == pytest.approx(1.0)


def test_means_are_over_trained_tokens() -> None:
    own = [
        trained(
            "0-0-0",
            turns=(0, 0, 1, 1),
            loss_weight=(0.5, 0.5, 0.0, 0.5),
            rollout=(-1.0, -1.0, -1.0, -1.0),
            old_logprobs=(-1.5, -1.0, 9.0, -0.75),
            entropy=(1.0, 2.0, np.nan, 6.0),
            clipped=(1, 0, 2, 2),
        )
    ]

    # three of the four tokens are trained
    assert blame(own, "mismatch", "token").total == pytest.approx(0.25)
    assert blame(own, "entropy", "token").total == pytest.approx(3.0)
    assert blame(own, "clipped", "token").total == pytest.approx(2 / 3)
    by_turn = blame(own, "entropy", "turn").rows
    assert [(row.turn, row.value) for row in by_turn] == [(1, 2.0), (0, 1.0)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("signal", ["loss", "mismatch", "entropy"])
def test_a_planted_token_is_first(signal: str, seed: int) -> None:
    own = step(seed)
    place = int(np.flatnonzero(own[17].trained)[40])
    column = {"loss": "token_loss", "mismatch": "old_logprobs", "entropy": "entropy"}[
        signal
    ]
    own[17].arrays[column][place] = -3000.0 if signal != "entropy" else 3000.0

    (first, *_) = blame(own, signal, "token", limit=5).rows

    turn = place // 100
    assert (first.id, first.turn, first.token) == ("17-0-0", turn, place + 10 * (turn + 1))
    assert blame(own, signal, "trajectory", limit=1).rows[0].id == "17-0-0"


def test_a_row_shows_its_token_between_its_neighbours() -> None:
    own = trained(
        "0-0-0",
        turns=(0, 0, 1, 1, 1),
        loss_weight=(1,) * 5,
        token_loss=(0.1, 0.1, 0.1, 7.0, 0.1),
    )

    (row, *_) = blame(
        [own], "loss", "token", decode=lambda ids: "/".join(map(str, ids))
    ).rows

    ids = own.token_ids.tolist()
    assert (row.before, row.text, row.after) == (str(ids[2]), str(ids[3]), str(ids[4]))


def test_what_is_not_trained_is_no_row() -> None:
    own = trained("0-0-0", turns=(0, 0), loss_weight=(0.0, 1.0), token_loss=(99.0, 0.5))

    assert [row.value for row in blame([own], "loss", "token").rows] == [0.5]


def test_of_many_tokens_only_the_largest_are_kept() -> None:
    own = step()
    every = blame(own, "loss", "token", limit=10**6).rows

    assert blame(own, "loss", "token", limit=7).rows == every[:7]


def test_the_logged_number_of_a_signal() -> None:
    row = {"policy/loss": 0.5, "policy/clip_frac_low": 0.1, "policy/clip_frac_high": 0.2}

    assert logged_value(row, "loss") == 0.5
    assert logged_value(row, "clipped") == pytest.approx(0.3)
    assert logged_value(row, "entropy") is None
    assert logged_value({**row, "policy/loss_last_pass": 0.4}, "loss") == 0.4


def test_a_token_that_a_correction_zeroed_counts_in_the_means() -> None:
    own = trained(
        "0-0-0",
        turns=(0, 0, 0),
        loss_weight=(0.5, 0.0, 0.0),
        loss_reason=(0, 1, 4),  # trained, mask, off_policy
        entropy=(1.0, 8.0, 2.0),
    )

    assert blame([own], "entropy", "token").total == pytest.approx(1.5)


def test_a_column_that_is_missing_names_the_setting() -> None:
    own = trained("0-0-0", turns=(0,), loss_weight=(1.0,))

    with pytest.raises(DataError, match=r"no 'entropy' .* store.detail: full"):
        blame([own], "entropy", "token")


def test_a_column_of_another_length_is_refused() -> None:
    own = trained("0-0-0", turns=(0, 0), loss_weight=(1.0,))

    with pytest.raises(DataError, match="each of its 2 policy tokens, got 1"):
        blame([own], "loss", "token")


def test_an_unknown_signal_is_refused() -> None:
    with pytest.raises(DataError, match=r"signal must be one of loss, .* got 'luck'"):
        blame([], "luck", "token")  # type: ignore[arg-type]
