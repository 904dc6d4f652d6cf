"""What a step learned of each token lies with the token: every POLICY token, in turn order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algorithms import make_algorithm
from agentrl.controller.batch_plan import PlannedBatch
from agentrl.controller.recording.learned_tokens import LearnedTokens
from agentrl.controller.recording.recorder import Recorder
from agentrl.controller.state import TrainState
from agentrl.metrics import PhaseTimer
from agentrl.rollouts import GroupOutcome, GroupRequest, make_batch
from agentrl.store import (
    Annotation,
    Detail,
    EventLog,
    RunDirectory,
    TrajectoryReader,
    TrajectoryWriter,
)
from agentrl.training import Layout
from agentrl.types import (
    SamplingParams,
    Segment,
    SegmentKind,
    Stats,
    Status,
    Task,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from agentrl.viewer.analysis.blame import blame, trained_tokens
from tests.controller.test_incidents import Rows, View
from tests.kit.episodes import turn as made_turn

TASK = Task("t")
AGENTS = ("main", "critic")
NUM_GROUPS = 3


def turn(
    index: int,
    parent: int | None,
    sampled: list[tuple[int, int]],
    context: int,
    agent: str = "main",
) -> Turn:
    """A turn whose sampled segments are (number of tokens, policy version); every token of an
    episode has an id and a logprob of its own. A turn without a parent opens a sequence, as another
    agent's first does."""
    first = 1000 * index + 1
    kind = SegmentKind.PROMPT if parent is None else SegmentKind.OBSERVATION
    completion = []
    start = first + context
    for size, version in sampled:
        ids = np.arange(start, start + size)
        logprobs = -ids.astype(np.float32)
        completion.append(Segment(SegmentKind.POLICY, ids, logprobs, version))
        start += size
    given = [Segment(kind, np.arange(first, first + context))]
    return made_turn(
        index,
        given,
        completion,
        parent=parent,
        sampling=SamplingParams(9, temperature=1.0),
        agent=agent,
    )


def group_of(index: int, rollouts: list[list[Turn]]) -> TrajectoryGroup:
    ended = Status("terminated")
    trajectories = [
        Trajectory(
            TASK, index, row, 0, "train", tuple(turns), status=ended, reward=float(row)
        )
        for row, turns in enumerate(rollouts)
    ]
    return TrajectoryGroup(index, TASK, tuple(trajectories))


# What the trainer computes of a token is a function of its id here, so that the trajectory alone
# says what its annotation must hold.
TRAINERS: dict[str, Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]] = {
    "old_logprobs": lambda ids: -ids / 8,
    "advantages": lambda ids: ids / 4,
    "ref_logprobs": lambda ids: -ids / 2,
    "ratio": lambda ids: 1 + ids / 1024,
    "clipped": lambda ids: ids % 4,
    "token_loss": lambda ids: ids / 16,
    "correction": lambda ids: ids % 3,
    "entropy": lambda ids: ids / 32,
}
RETURNED = ("ratio", "clipped", "token_loss", "correction", "entropy")


def column(
    name: str, ids: npt.NDArray[np.int32], trained: npt.NDArray[np.bool_]
) -> npt.NDArray:
    return np.where(trained, TRAINERS[name](ids.astype(np.float64)), 0).astype(np.float32)


class Step:
    """A step of a stage that trained groups, without a model."""

    def __init__(
        self,
        groups: list[TrajectoryGroup],
        *,
        oldest_version: int,
        masked: frozenset[tuple[int, int, int]] = frozenset(),
        mini_batch_groups: int = 1,
    ) -> None:
        self.groups = groups
        self.oldest_version = oldest_version
        self.masked = masked
        finished = [one for group in groups for one in group.finished]
        batch = make_batch(
            groups,
            credit=np.array([0.5 * one.rollout_index for one in finished], np.float32),
            oldest_version=oldest_version,
        )
        first_turn = np.cumsum([0, *(len(one.turns) for one in finished)])
        rows = [
            first_turn[row] + index
            for row, one in enumerate(finished)
            for index in range(len(one.turns))
            if (one.group_index, one.rollout_index, index) in masked
        ]
        batch = replace(
            batch, loss_mask=np.where(np.isin(batch.turn_index, rows), 0, batch.loss_mask)
        )
        self.trained = batch.loss_mask != 0
        columns = ("old_logprobs", "advantages", "ref_logprobs")
        batch = batch.join(
            {name: column(name, batch.token_ids, self.trained) for name in columns}
        )
        self.planned = PlannedBatch.plan(
            batch,
            make_algorithm("grpo", {"reduction": "trajectory_mean"}),
            Layout(2, 2000, 300.0),
            mini_batch_groups=mini_batch_groups,
            forward_tokens=2000,
            seed=1,
            state={},
            policy_version=0,
        )

    def learned(
        self, detail: Detail, *, num_passes: int = 1, learners: int = 2
    ) -> LearnedTokens:
        """What two learners leave: the second has a column of its own alone. Earlier passes differ
        from the last."""
        batch = self.planned.batch
        learned = LearnedTokens(
            self.planned,
            num_passes=num_passes,
            oldest_version=self.oldest_version,
            detail=detail,
        )
        names = RETURNED if detail == "full" else RETURNED[:-1]
        actors = {name: column(name, batch.token_ids, self.trained) for name in names}
        critics = {
            "values": np.where(self.trained, batch.token_ids / 64, 0).astype(np.float32)
        }
        steps = list(self.planned.mini_batches(num_passes))
        for number, mini_batch in enumerate(steps):
            last = number >= len(steps) - len(self.planned.updates)
            for learner, own in (("actor", actors), ("critic", critics))[:learners]:
                shown = own if last else {name: values + 99 for name, values in own.items()}
                learned.add(
                    learner, mini_batch(2), {} if detail == "basic" else shown, Stats()
                )
        return learned

    def record(
        self,
        run: RunDirectory,
        writer: TrajectoryWriter,
        learned: LearnedTokens,
        stage: str,
    ) -> None:
        recorder = self.recorder(run, writer, stage)
        self.train(recorder, learned)
        recorder.events.close()

    def recorder(
        self,
        run: RunDirectory,
        writer: TrajectoryWriter,
        stage: str,
        detail: Detail = "tokens",
    ) -> Recorder:
        return Recorder(
            stage,
            writer=writer,
            events=EventLog(run),
            sink=Rows(),
            view=View(),
            timer=PhaseTimer(),
            detail=detail,
        )

    def train(self, recorder: Recorder, learned: LearnedTokens) -> None:
        for group in self.groups:
            request = GroupRequest(group.group_index, TASK, len(group.trajectories))
            recorder.record_outcome(GroupOutcome(request, group))
        recorder.take_episodes()
        recorder.record_step(
            TrainState(step=1), self.groups, {"main": learned}, Stats(), {}
        )

    def expected(self, trajectory: Trajectory) -> dict[str, list[float]]:
        """Of the actor, by the trajectory alone, with no batch."""
        tokens = [
            (int(token), segment.policy_version or 0, one.index)
            for one in trajectory.turns
            for segment in one.completion
            for token in segment.token_ids
        ]
        place = (trajectory.group_index, trajectory.rollout_index)
        ids = np.array([token for token, _, _ in tokens], np.int32)
        stale = np.array([version < self.oldest_version for _, version, _ in tokens])
        masked = np.array([(*place, index) in self.masked for _, _, index in tokens])
        trained = ~(stale | masked)
        columns = {name: column(name, ids, trained) for name in TRAINERS}
        unknown = (
            "old_logprobs",
            "advantages",
            "ref_logprobs",
            "ratio",
            "correction",
            "entropy",
        )
        for name in unknown:
            columns[name] = np.where(trained, columns[name], np.nan)
        rejected = trained & (columns["correction"] == 0)
        columns["loss_reason"] = np.select([stale, masked, rejected], [2, 1, 4], 0)
        return {name: values.tolist() for name, values in columns.items()}


def numbers_of(
    expected: dict[str, list[float]], ids: npt.NDArray[np.int32]
) -> dict[str, float]:
    """A trajectory's numbers by those of its tokens; the engine's logprob of a token is -id."""
    trained = np.isin(expected["loss_reason"], (0, 4))
    if not trained.any():
        return {}
    return {
        "advantage": float(np.mean(np.array(expected["advantages"])[trained])),
        "clip_frac": float(np.mean(np.array(expected["clipped"])[trained] != 0)),
        "mismatch": float(ids[trained].max() * (1 - 1 / 8)),
    }


def told(annotation: Annotation) -> dict[str, list[float]]:
    return {name: array.tolist() for name, array in annotation.arrays.items()}


@st.composite
def episodes(draw: st.DrawFn) -> list[Turn]:
    """Branches, the sequences of several agents, and tokens of several versions in one turn."""
    number = draw(st.integers(1, 5))
    parents = [draw(st.sampled_from([None, *range(index)])) for index in range(number)]
    sampled = st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=3
    )
    return [
        turn(
            index,
            parent,
            draw(sampled),
            draw(st.integers(1, 3)),
            draw(st.sampled_from(AGENTS)),
        )
        for index, parent in enumerate(parents)
    ]


@st.composite
def steps(draw: st.DrawFn, first_group: int) -> Step:
    groups = [
        group_of(first_group + index, draw(st.lists(episodes(), min_size=1, max_size=3)))
        for index in range(NUM_GROUPS)
    ]
    turns = [
        (one.group_index, one.rollout_index, index)
        for group in groups
        for one in group.trajectories
        for index in range(len(one.turns))
    ]
    return Step(
        groups,
        oldest_version=draw(st.integers(0, 2)),
        masked=draw(st.frozensets(st.sampled_from(turns), max_size=3)),
        mini_batch_groups=draw(st.integers(1, NUM_GROUPS)),
    )


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(steps(0), steps(NUM_GROUPS), st.integers(1, 3))
def test_every_tokens_value_is_the_trainers(
    first: Step, second: Step, num_passes: int
) -> None:
    with TemporaryDirectory() as folder:
        run = RunDirectory.create(Path(folder) / "run")
        with TrajectoryWriter(run) as writer:
            for stage, step in (("warmup", first), ("rl", second)):
                step.record(run, writer, step.learned("full", num_passes=num_passes), stage)
        reader = TrajectoryReader(run)
        for stage, step in (("warmup", first), ("rl", second)):
            by_token = 0.0
            for trajectory in (one for group in step.groups for one in group.trajectories):
                stored = reader.get(trajectory.id)
                told_agents = [one.agent for one in stored.trajectory.turns]
                assert told_agents == [one.agent for one in trajectory.turns]
                actor, critic = stored.annotations
                assert (actor.step, actor.learner, actor.pass_index) == (
                    1,
                    "actor",
                    num_passes - 1,
                )
                expected = step.expected(trajectory)
                ids = np.concatenate(
                    [one.token_ids for one in trajectory.policy_segments()]
                )
                assert actor.values == pytest.approx(
                    {
                        "trained_step": 1,
                        "stage": stage,
                        "credit": 0.5 * trajectory.rollout_index,
                        "old_logprobs_from": "recomputed",
                        "staleness": -min(trajectory.policy_versions),
                        **numbers_of(expected, ids),
                    }
                )
                arrays = told(actor)
                weights = np.array(arrays.pop("loss_weight"))
                np.testing.assert_equal(arrays, expected)
                trained = np.isin(expected["loss_reason"], (0, 4))
                assert ((weights > 0) == trained).all()
                by_token += weights.sum()
                assert critic.learner == "critic"
                values = np.where(trained, ids / 64, np.nan)
                np.testing.assert_equal(critic.arrays["values"], values.astype(np.float32))
            # of a mean over each mini-batch, and over those that train anything
            assert by_token == pytest.approx(1 if step.trained.any() else 0, abs=1e-6)


def test_two_branches_come_in_turn_order_and_stale_tokens_are_there(tmp_path: Path) -> None:
    # the third turn goes on from the first: two samples, of which the first ends at the second turn
    turns = [
        turn(0, None, [(2, 0)], 1),
        turn(1, 0, [(1, 0), (2, 1)], 1),
        turn(2, 0, [(2, 1)], 1),
        turn(3, 1, [(1, 1)], 1),
    ]
    step = Step([group_of(0, [turns])], oldest_version=1)
    run = RunDirectory.create(tmp_path / "run")
    with TrajectoryWriter(run) as writer:
        step.record(run, writer, step.learned("tokens", learners=1), "rl")
    (annotation,) = TrajectoryReader(run).get("0-0-0").annotations
    found = told(annotation)
    nan = float("nan")
    values = [nan, nan, nan, 1003, 1004, 2002, 2003, 3002]
    np.testing.assert_equal(found["advantages"], [value / 4 for value in values])
    assert found["loss_reason"] == [2, 2, 2, 0, 0, 0, 0, 0]
    assert found["token_loss"][:4] == [0, 0, 0, 1003 / 16]
    assert not {"entropy", "ref_logprobs"} & found.keys()


def test_basic_keeps_no_number_of_a_token(tmp_path: Path) -> None:
    step = Step([group_of(0, [[turn(0, None, [(2, 0)], 1)]])], oldest_version=0)
    run = RunDirectory.create(tmp_path / "run")
    with TrajectoryWriter(run) as writer:
        step.record(run, writer, step.learned("basic"), "rl")
    (annotation,) = TrajectoryReader(run).get("0-0-0").annotations
    assert annotation.arrays == {}
    # what the step knows of all tokens together is kept
    assert annotation.values == pytest.approx(
        {
            "trained_step": 1,
            "stage": "rl",
            "credit": 0.0,
            "staleness": 0,
            "advantage": (2 + 3) / 8,
            "mismatch": 3 * 7 / 8,
        }
    )


@pytest.mark.parametrize(
    ("reason", "why"), [("no_spread", 3), ("too_few_finished", 3), ("stale", 2)]
)
@pytest.mark.parametrize("trains", [True, False])
def test_a_group_that_was_left_out_says_why_its_tokens_weigh_nothing(
    tmp_path: Path, reason: str, why: int, *, trains: bool
) -> None:
    step = Step([group_of(0, [[turn(0, None, [(2, 0)], 1)]])], oldest_version=0)
    turns = [turn(0, None, [(2, 0)], 1), turn(1, 0, [(3, 0)], 1)]
    run = RunDirectory.create(tmp_path / "run")
    with TrajectoryWriter(run) as writer:
        recorder = step.recorder(run, writer, "rl")
        dropped = group_of(1, [turns, turns])
        recorder.record_outcome(GroupOutcome(GroupRequest(1, TASK, 2), dropped))
        recorder.record_dropped(dropped, reason)
        if trains:
            step.train(recorder, step.learned("tokens", learners=1))
        else:
            recorder.record_step(TrainState(step=1), [], {}, Stats(), {})
        recorder.record_step(TrainState(step=2), [], {}, Stats(), {})  # it is said once
        recorder.events.close()
    reader = TrajectoryReader(run)
    for name in ("1-0-0", "1-1-0"):
        (annotation,) = reader.get(name).annotations
        assert (annotation.step, annotation.learner) == (1, "actor")
        assert annotation.values == {"stage": "rl", "staleness": 0}
        assert told(annotation) == {"loss_weight": [0.0] * 5, "loss_reason": [why] * 5}
    assert len(list(reader.annotations(step=1))) == (3 if trains else 2)
    # a step's loss is still that of what it trained
    found = trained_tokens(run, reader, reader.summaries(), reader.annotations(step=1))
    parts = blame(found, "loss", "token")
    assert {row.id for row in parts.rows} == ({"0-0-0"} if trains else set())


def test_basic_says_nothing_of_a_group_that_was_left_out(tmp_path: Path) -> None:
    step = Step([group_of(0, [[turn(0, None, [(2, 0)], 1)]])], oldest_version=0)
    run = RunDirectory.create(tmp_path / "run")
    with TrajectoryWriter(run) as writer:
        recorder = step.recorder(run, writer, "rl", detail="basic")
        recorder.record_dropped(step.groups[0], "no_spread")
        recorder.record_step(TrainState(step=1), [], {}, Stats(), {})
        recorder.events.close()
    assert list(TrajectoryReader(run).annotations()) == []
