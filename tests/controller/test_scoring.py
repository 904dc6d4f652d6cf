"""Episodes on their way from the runners get a real reward model's scores, or fail by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from agentrl.controller.cluster.role_group import LocalRoleGroup
from agentrl.controller.cluster.role_handle import RoleHandle
from agentrl.controller.cluster.rollout_pool import collect_groups, stream_groups
from agentrl.controller.scored_pool import ScoredPool
from agentrl.controller.scoring import RewardScorer, SequenceScores
from agentrl.errors import RankLostError, RewardError
from agentrl.rollouts import GroupOutcome, GroupRequest
from agentrl.training import RewardModelSpec
from agentrl.types import REWARD_STYLE, SamplingParams, Status, TrajectoryGroup
from tests.controller.hand_pool import HandPool, MakeWorld, bounds
from tests.controller.tiny import made_groups
from tests.kit.waiting import DEADLINE_S


@pytest.fixture(scope="module")
def folder(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sequence classifier as Hugging Face makes one of the tiny model."""
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("rm")
    AutoModelForSequenceClassification.from_pretrained(model, num_labels=1).save_pretrained(
        path
    )
    return path


@pytest.fixture
def workers(folder: Path) -> Iterator[LocalRoleGroup]:
    group = LocalRoleGroup(threads=1)
    group.setup({"reward_model": RewardModelSpec(str(folder))})
    yield group
    group.close()


def outcome_of(group: TrajectoryGroup) -> GroupOutcome:
    return GroupOutcome(
        GroupRequest(group.group_index, group.task, len(group.trajectories)), group
    )


def sequence_scores(workers: LocalRoleGroup, tokens: int) -> SequenceScores:
    return SequenceScores(RoleHandle(workers, "reward_model"), tokens)


def scored(
    workers: LocalRoleGroup, groups: Sequence[TrajectoryGroup], **settings: object
) -> list[TrajectoryGroup]:
    tokens = settings.pop("micro_batch_tokens", 4096)
    assert isinstance(tokens, int)
    scorer = RewardScorer(sequence_scores(workers, tokens), **{"weight": 0.5} | settings)  # type: ignore[arg-type]
    return [
        outcome.group for outcome in scorer.score([outcome_of(group) for group in groups])
    ]


def test_a_score_is_that_of_the_last_sequence_and_weighs_in_the_reward(
    workers: LocalRoleGroup, folder: Path
) -> None:
    groups = made_groups(0, 3)
    assert any(len(t.samples()) > 1 for group in groups for t in group.trajectories)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    for before, after in zip(groups, scored(workers, groups), strict=True):
        for was, now in zip(before.trajectories, after.trajectories, strict=True):
            last = was.samples()[-1]
            ids = torch.tensor(
                [
                    [
                        token
                        for segment in last.segments
                        for token in segment.token_ids.tolist()
                    ]
                ]
            )
            with torch.no_grad():
                expected = model(input_ids=ids).logits.item()
            assert now.rewards["reward_model"] == pytest.approx(expected, abs=1e-5)
            assert was.reward is not None
            assert now.reward == pytest.approx(was.reward + 0.5 * expected, abs=1e-5)


@pytest.mark.parametrize("one_by_one", [False, True])
def test_only_tasks_of_the_style_rule_are_left_out(
    workers: LocalRoleGroup, one_by_one: bool
) -> None:
    groups = [
        replace(group, task=replace(group.task, info=info))
        for group, info in zip(
            made_groups(0, 3),
            ({REWARD_STYLE: "rule"}, {REWARD_STYLE: "model"}, {}),
            strict=True,
        )
    ]
    rule, model, without = scored(workers, groups, one_by_one=one_by_one)
    assert rule is groups[0]
    assert rewards([model, without]) == rewards(
        scored(workers, groups[1:], one_by_one=one_by_one)
    )
    for before, after in zip(groups[1:], (model, without), strict=True):
        assert all("reward_model" in t.rewards for t in after.trajectories)
        assert [t.reward for t in after.trajectories] != [
            t.reward for t in before.trajectories
        ]


def test_without_a_task_to_score_the_reward_model_is_not_asked() -> None:
    class Unasked:
        max_tokens = 1

        def of(self, groups: object) -> object:
            raise AssertionError("asked")

    (group,) = made_groups(0, 1)
    ruled = outcome_of(
        replace(group, task=replace(group.task, info={REWARD_STYLE: "rule"}))
    )
    assert RewardScorer(Unasked(), weight=1.0).score([ruled]) == [ruled]  # type: ignore[arg-type]


def test_scores_do_not_depend_on_how_tokens_were_drawn(workers: LocalRoleGroup) -> None:
    (group,) = made_groups(0, 1)
    greedy = SamplingParams(64, temperature=0.0)
    cold = replace(
        group,
        trajectories=tuple(
            replace(t, turns=tuple(replace(turn, sampling=greedy) for turn in t.turns))
            for t in group.trajectories
        ),
    )
    assert rewards(scored(workers, [cold])) == rewards(scored(workers, [group]))


def test_alone_a_group_has_the_same_scores_to_the_last_bit_whatever_came_beside_it(
    workers: LocalRoleGroup,
) -> None:
    groups = made_groups(0, 4)
    together = rewards(scored(workers, groups, one_by_one=True))
    apart = [
        reward
        for group in groups
        for reward in rewards(scored(workers, [group], one_by_one=True))
    ]
    assert together == apart


def test_what_failed_before_is_not_scored(workers: LocalRoleGroup) -> None:
    (group,) = made_groups(0, 1)
    lost = replace(
        group.trajectories[1], status=Status("failed", "engine", "gone"), reward=None
    )
    siblings = (group.trajectories[0], lost, *group.trajectories[2:])
    (found,) = scored(workers, [replace(group, trajectories=siblings)])
    assert found.trajectories[1] is lost
    assert [t.rollout_index for t in found.finished if "reward_model" in t.rewards] == [
        0,
        2,
        3,
    ]


def test_an_episode_too_long_to_read_fails_by_name_and_the_others_do_not(
    workers: LocalRoleGroup,
) -> None:
    (group,) = made_groups(0, 1)
    lengths = [len(t.samples()[-1]) for t in group.trajectories]
    assert len(set(lengths)) > 1
    longest = lengths.index(max(lengths))
    (found,) = scored(workers, [group], micro_batch_tokens=max(lengths) - 1)
    failed = found.trajectories[longest]
    assert (failed.status.kind, failed.status.reason, failed.reward) == (
        "failed",
        "reward",
        None,
    )
    assert failed.status.detail.startswith(
        f"trajectory 0-{longest}-0 has {max(lengths)} tokens, the reward model reads"
    )
    assert all("reward_model" in t.rewards for t in found.finished)


def test_an_episode_without_tokens_fails_by_name(workers: LocalRoleGroup) -> None:
    (group,) = made_groups(0, 1)
    bare = replace(
        group, trajectories=tuple(replace(t, turns=()) for t in group.trajectories)
    )
    (found,) = scored(workers, [bare])
    assert [str(t.status) for t in found.trajectories] == ["failed(reward)"] * 4
    assert "has no tokens to score" in found.trajectories[0].status.detail


def test_a_score_that_is_not_finite_is_a_failure_never_a_number(
    model: Path, tmp_path: Path
) -> None:
    made = AutoModelForSequenceClassification.from_pretrained(model, num_labels=1)
    with torch.no_grad():
        made.score.weight.fill_(3e38)
    made.save_pretrained(tmp_path)
    group = LocalRoleGroup(threads=1)
    try:
        # the check at loading compares inf with inf; what it scores is not finite either
        group.setup({"reward_model": RewardModelSpec(str(tmp_path))})
        (found,) = scored(group, made_groups(0, 1))
    finally:
        group.close()
    assert {str(t.status) for t in found.trajectories} == {"failed(reward)"}
    assert "got the score" in found.trajectories[0].status.detail


def test_a_model_that_fails_as_a_whole_ends_the_run_at_the_boundary_reward(
    model: Path,
) -> None:
    group = LocalRoleGroup(threads=1)
    try:
        with pytest.raises(
            RewardError, match="the reward model could not score the groups of draws 0: "
        ):
            scored(group, made_groups(0, 1))
    finally:
        group.close()


def test_a_rank_that_is_lost_while_it_scores_is_no_fault_of_the_reward_model(
    workers: LocalRoleGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise RankLostError("the worker of rank 0 died")

    monkeypatch.setattr(workers, "begin_ranks", lost)
    with pytest.raises(RankLostError):
        scored(workers, made_groups(0, 1))


def test_a_rollout_service_buffers_groups_with_their_scores(
    workers: LocalRoleGroup, world: MakeWorld
) -> None:
    (group,) = made_groups(0, 1)
    scorer = RewardScorer(sequence_scores(workers, 4096), weight=1.0)
    w = world(bounds(1, len(group.trajectories)), score=scorer.score)
    batch = w.next_groups()
    w.pool.wait_for(1)
    w.pool.give(outcome_of(group))
    expected = rewards(scored(workers, [group], weight=1.0))
    assert rewards(batch.get()) == expected
    assert rewards([outcome.group for outcome in w.taken_in]) == expected


def test_groups_that_are_only_played_come_with_their_scores(
    workers: LocalRoleGroup,
) -> None:
    (group,) = made_groups(0, 1)
    request = outcome_of(group).request
    scorer = RewardScorer(sequence_scores(workers, 4096), weight=1.0)
    expected = rewards(scored(workers, [group], weight=1.0))
    plays: tuple[Any, ...] = (collect_groups, partial(stream_groups, in_flight=1))
    for play in plays:
        pool = HandPool()
        pool.give(outcome_of(group))
        with ScoredPool(pool, scorer.score, max_retries=0) as scored_pool:
            (outcome,) = play(scored_pool, [request], deadline_s=DEADLINE_S)
        assert rewards([outcome.group]) == expected


def rewards(groups: Sequence[TrajectoryGroup]) -> list[float | None]:
    return [trajectory.reward for group in groups for trajectory in group.finished]
