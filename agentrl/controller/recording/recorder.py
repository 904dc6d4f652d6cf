"""Recorder: writes trajectories, annotations, metrics, events and the display's lines."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from typing import Any

import numpy as np

from agentrl.controller.batch_plan import PlannedBatch
from agentrl.controller.cluster.rollout_pool import Incident
from agentrl.controller.evaluator import Evaluation
from agentrl.controller.failures import failure_causes
from agentrl.controller.recording.learned_tokens import LearnedTokens, left_out
from agentrl.controller.schedule import GroupRecorder
from agentrl.controller.state import TrainState, metric_prefix
from agentrl.errors import StoreError
from agentrl.metrics import (
    PhaseTimer,
    Sink,
    StepDisplay,
    ended_metrics,
    no_signal,
    rollout_metrics,
    tokens_per_s,
)
from agentrl.metrics.health import Health
from agentrl.metrics.monitors import ABANDONED, LAG, UNTAUGHT
from agentrl.rollouts import GroupOutcome, GroupRequest, GroupState
from agentrl.store import AnnotationColumn, Detail, EventLog, TrajectoryWriter
from agentrl.types import Stats, Trajectory, TrajectoryGroup
from agentrl.types.loop_thread import tell_blocked

logger = logging.getLogger(__name__)

_WITH_MAX = frozenset({"mismatch/logp_abs", "gpu/allocated_gib", "gpu/peak_gib"})


@dataclass(eq=False)
class Recorder(GroupRecorder):
    """Of one stage. The rollout service's thread calls ``record_ended``, ``record_outcome`` and
    ``record_failures`` too, the loop's thread everything.

    Args:
        stage: prefix of the metrics.
        writer: stores trajectories.
        events: what a person should know later.
        sink: where numbers go.
        view: what a person sees now.
        timer: seconds by phase, of the whole run.
        step: steps done before, for a resumed stage.
        results: evaluations so far, as in ``summary.json``.
        detail: what annotations keep of each token (``store.detail``).
        health: tells what goes wrong; None for a stage that does not learn by rewards.
        ahead: whether groups of later batches are played while one is trained, so that what ended
            is not what is trained.
    """

    stage: str
    _: KW_ONLY
    writer: TrajectoryWriter
    events: EventLog
    sink: Sink
    view: StepDisplay
    timer: PhaseTimer
    step: int = 0
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    detail: Detail = "tokens"
    health: Health | None = None
    ahead: bool = False

    def __post_init__(self) -> None:
        # guards what ended, dropped groups and failure counts: the service's thread adds to them,
        # the loop's thread takes them
        self._lock = threading.Lock()
        # groups in the order of their ends, which no step's statistics have yet
        self._ended: list[TrajectoryGroup] = []
        self._played: list[TrajectoryGroup] = []  # those of the step that is trained
        self._dropped: list[tuple[TrajectoryGroup, str]] = []
        self._outcomes: list[GroupOutcome] = []
        self._taken: list[GroupOutcome] = []
        # ids of what was stored before its group came to its end; used by the thread of the
        # outcomes alone
        self._stored: set[str] = set()
        self._evaluated: dict[str, float] = {}
        self.last_evaluated: tuple[int, dict[str, float]] = (self.step, {})
        """The step whose weights were evaluated last, and its numbers by metric."""
        self._evaluated_step = self.step
        self._failure_counts: Counter[str] = Counter()
        self._step_start = time.monotonic()
        self._store_wait_s = self.writer.counts.wait_s

    def record_ended(self, trajectory: Trajectory) -> None:
        """Stores a trajectory whose group goes on, under the step that comes next."""
        self._store(trajectory)
        self._stored.add(trajectory.id)

    def record_outcome(self, outcome: GroupOutcome) -> None:
        """Stores those of a group's trajectories that are not stored yet; in training the group
        counts in the metrics of the step that trains it, or of the one that comes next."""
        for trajectory in (*outcome.retried, *outcome.played.trajectories):
            if trajectory.id in self._stored:
                self._stored.remove(trajectory.id)
            else:
                self._store(trajectory)
        if outcome.request.purpose == "train":
            with self._lock:
                self._outcomes.append(outcome)
                self._ended.append(outcome.group)

    def record_dropped(self, group: TrajectoryGroup, reason: str) -> None:
        """A finished group that is in no batch: the step that comes next says so of its tokens."""
        if self.detail != "basic":
            with self._lock:
                self._dropped.append((group, reason))

    def uncounted(self) -> tuple[int, ...]:
        """Draws in training that came to their end since the step before."""
        with self._lock:
            return tuple(
                sorted({o.request.group_index for o in (*self._taken, *self._outcomes)})
            )

    def recall(self, groups: Sequence[TrajectoryGroup], uncounted: Collection[int]) -> None:
        """Groups of a checkpoint that were stored and wait to be trained; those of ``uncounted``
        ended since the step before it."""
        with self._lock:
            self._ended += groups
            for group in (group for group in groups if group.group_index in uncounted):
                request = GroupRequest(
                    group.group_index, group.task, len(group.trajectories), stage=self.stage
                )
                self._outcomes.append(GroupOutcome(request, group))

    def take_episodes(
        self, batch: Sequence[TrajectoryGroup] = (), waiting: Collection[int] = ()
    ) -> list[Trajectory]:
        """A batch was taken. Its step's statistics are of what ended up to its last group and waits
        for no later batch: its groups, and those between them that no batch has. Where nothing is
        played ahead, that is all that ended.

        Args:
            batch: the groups taken.
            waiting: indices of those that finished and wait for a later batch.

        Returns:
            The episodes that ended since the batch before, whatever became of them.
        """
        with self._lock:
            self._taken += self._outcomes
            self._outcomes = []
            trained = {group.group_index for group in batch if self.ahead}
            end = len(self._ended)
            while end and trained and self._ended[end - 1].group_index not in trained:
                end -= 1
            later = set(waiting) if trained else set()
            ended = self._ended[:end]
            self._played += [group for group in ended if group.group_index not in later]
            self._ended[:end] = [group for group in ended if group.group_index in later]
        return [
            trajectory
            for outcome in self._taken
            for trajectory in outcome.group.trajectories
        ]

    def record_step(
        self,
        state: TrainState,
        groups: Sequence[TrajectoryGroup],
        learned: Mapping[str, LearnedTokens],
        stats: Stats,
        counts: Mapping[str, float],
        *,
        has_signal: bool = True,
        note: str = "",
    ) -> None:
        """A step's numbers, to every sink and the display.

        Args:
            state: after the step.
            groups: those that were trained.
            learned: what the learners of each policy left of each token of its batch.
            stats: of the updates.
            counts: what else happened to groups, and how fast, by the metric's name.
            has_signal: whether anything could be learned of them; where not, the display says why.
            note: what else the display says at the end of the step's line.
        """
        outcomes, played = self._taken, self._played
        self._taken, self._played = [], []
        self.step = state.step
        wait_s = self.writer.counts.wait_s
        self.timer.add("wait_store", wait_s - self._store_wait_s)
        self._store_wait_s = wait_s
        # beside each other, so that the step of phases.jsonl ends where time/step_s does
        phases = self.timer.take_step()
        now = time.monotonic()
        seconds = now - self._step_start
        self._step_start = now
        played = sorted(played, key=lambda group: group.group_index)
        ended = sorted((one.group for one in outcomes), key=lambda group: group.group_index)
        values = (
            rollout_metrics(played) | _untaught(played, learned.values()) if played else {}
        )
        values |= (
            _sandboxes(outcomes)
            | _lag(outcomes)
            | _unscored(outcomes)
            | _abandoned(outcomes)
        )
        if self.ahead:
            values |= ended_metrics(ended)
        values |= _numbers(stats)
        values |= phases
        if learned:
            learning_s = seconds - phases.get("time/eval_s", 0.0)
            tokens = sum(own.planned.batch.num_tokens for own in learned.values())
            values["perf/tokens_per_s"] = tokens_per_s(tokens, learning_s)
            trained = sum(own.planned.batch.num_trajectories for own in learned.values())
            values["count/trained_trajectories"] = float(trained)
        values |= self._evaluated
        self._evaluated = {}
        values["time/step_s"] = seconds
        for policy, version in state.versions.items():
            values[f"{metric_prefix(policy)}policy_version"] = float(version)
        values |= {name: float(count) for name, count in counts.items()}
        with self._lock:
            values |= self._failure_counts
            self._failure_counts.clear()
            dropped = self._dropped
            self._dropped = []
        for policy, own in learned.items():
            numbers = _staleness(own.planned, state) | own.last_pass
            values |= {
                f"{metric_prefix(policy)}{name}": one for name, one in numbers.items()
            }
            # Demonstrations and pairs are not stored, so there is nothing to annotate.
            if played:
                self._annotate(own, groups, state)
        for group, reason in dropped:
            by = learned.get(group.policy)
            version = by.planned.policy_version if by else state.versions[group.policy]
            for annotation in left_out(group, reason, self.stage, state.step, version):
                self.writer.annotate(annotation)
        self._alert(ended, state.step)
        self._tell_health(state.step, values, played)
        self.sink.log(state.step, values, self.stage)
        self.view.step(
            state.step, values, note or ("" if has_signal else no_signal(played))
        )
        self.view.status("")
        # The annotations come before: a later one would make a second shard of the step.
        self.writer.seal(state.step, self.stage)

    def evaluating(self, when: str, step: int) -> None:
        """An evaluation of the weights after ``step`` starts; until a step ends, the display says
        so."""
        self._evaluated_step = step
        self.view.status(f"evaluating ({when})")

    def record_evaluation(self, result: Evaluation, state: TrainState) -> None:
        """An evaluation's numbers, for the summary and the step's row of metrics."""
        own = self.results.setdefault(result.name, {})
        own[result.when] = dict(result.numbers)
        own["num_tasks"] = result.num_tasks
        told = ", ".join(
            f"{name} {value:.3f}"
            for name, value in result.numbers.items()
            if isinstance(value, float)
        )
        self.view.message(
            f"held-out {result.name} {result.when}: {told} ({result.num_tasks} tasks)"
        )
        numbers = {
            f"eval/{result.name}/{kind}": float(value)
            for kind, value in result.numbers.items()
            if value is not None
        }
        step, known = self.last_evaluated
        self.last_evaluated = (state.step, (known if step == state.step else {}) | numbers)
        # no step of its own: the row of the weights that the stage starts from
        if state.step == self.step:
            self.sink.log(state.step, numbers, self.stage)
            self.writer.seal(state.step, self.stage)
        else:
            self._evaluated |= numbers

    def record_failures(self, incidents: Sequence[Incident]) -> None:
        """Shows what the run survived, as soon as it is known; each is an event, and counts in the
        next row of metrics."""
        for incident in incidents:
            self.view.alert(str(incident))
            self.events.log(
                incident.event,
                str(incident),
                boundary="engine",
                level="warning",
                stage=self.stage,
            )
            with self._lock:
                self._failure_counts.update(incident.counts)

    def record_unsaved(self, groups: Sequence[GroupState]) -> None:
        """Tells which of the episodes in flight a checkpoint does not hold, and why."""
        reasons = Counter(one.why for group in groups for one in group.lost)
        told = "; ".join(f"{number} × {why}" for why, number in reasons.most_common(3))
        if reasons:
            self.events.log(
                "unsaved_episodes",
                f"the checkpoint holds {sum(len(group.resumable) for group in groups)} episodes in "
                f"flight as they stand; {reasons.total()} would start again after a resume: {told}",
                boundary="env",
                level="info",
                stage=self.stage,
            )

    def record_failed_checkpoint(self, what: str, error: StoreError) -> None:
        """Tells that a checkpoint, or its copy elsewhere, could not be written, and that the run
        goes on."""
        text = f"{what}; the one before stays and the run goes on: {error}"
        with self._lock:
            self._failure_counts["count/failed_checkpoints"] += 1
        self.warn("checkpoint_failed", text, boundary="store")

    def warn(
        self, event: str, text: str, *, boundary: str = "training", **record: Any
    ) -> None:
        """A warning in the log, and so on the terminal, that is an event too."""
        record["stage"] = self.stage
        logger.warning("%s", text, extra={"event": event, **record})
        self.events.log(event, text, boundary=boundary, level="warning", **record)

    def sync(self) -> None:
        """Returns when everything given so far is durable."""
        self.writer.flush()

    def _store(self, trajectory: Trajectory) -> None:
        evaluated = trajectory.purpose == "eval"
        self.writer.write(trajectory, self._evaluated_step if evaluated else self.step + 1)
        if trajectory.status.kind == "failed":
            self.events.trajectory_failed(trajectory, stage=self.stage)

    def _alert(self, played: Sequence[TrajectoryGroup], step: int) -> None:
        """Episodes that failed, or that an environment's fault cut short: how many at which
        boundary, and why."""
        episodes = [trajectory for group in played for trajectory in group.trajectories]
        for cause in failure_causes(episodes):
            text = f"step {step}: of {len(episodes)} episodes {cause}"
            self.view.alert(text)
            numbers = {"step": step, "episodes": len(cause.episodes), "of": len(episodes)}
            self.events.log(
                "episodes_failed", text, boundary=cause.boundary, level="warning", **numbers
            )

    def _tell_health(
        self, step: int, values: Mapping[str, float], played: Sequence[TrajectoryGroup]
    ) -> None:
        """What goes wrong since this step: a warning, and an event with its evidence."""
        for alert in (
            self.health.watch(step, values, played) if self.health is not None else ()
        ):
            self.warn("health_alert", str(alert), **alert.record())

    def _annotate(
        self, learned: LearnedTokens, groups: Sequence[TrajectoryGroup], state: TrainState
    ) -> None:
        """What the step learned of each trained trajectory."""
        trained = {
            (t.group_index, t.rollout_index): t
            for group in groups
            if group.policy == learned.planned.policy
            for t in group.trajectories
        }
        known = self.writer.columns
        for annotation in learned.annotations(self.stage, state.step, trained):
            new = [name for name in annotation.arrays if name not in known]
            if new:  # of the algorithm's own loss
                self.writer.declare([AnnotationColumn(name, "token") for name in new])
                known = self.writer.columns
            self.writer.annotate(annotation)


def _untaught(
    groups: Sequence[TrajectoryGroup], learned: Iterable[LearnedTokens]
) -> dict[str, float]:
    """The share of groups that teach no policy anything; those without a finished rollout are
    counted as failures."""
    teaching = {index for own in learned for index in own.planned.teaching_groups()}
    finished = [group.group_index for group in groups if group.finished]
    if not finished:
        return {}
    return {UNTAUGHT: sum(index not in teaching for index in finished) / len(finished)}


def _staleness(planned: PlannedBatch, state: TrainState) -> dict[str, float]:
    """Versions that the trained tokens lay behind the weights they were trained into, and the share
    of trajectories whose tokens are of more than one policy version."""
    batch = planned.batch
    versions = batch.policy_versions[(batch.loss_mask != 0) & (batch.policy_versions >= 0)]
    if not versions.size:
        return {}
    # the update's own version is the one before its publish
    behind = state.versions[planned.policy] - 1 - versions
    owners = np.repeat(batch.trajectory, batch.lengths)
    sampled = batch.policy_versions >= 0
    pairs = np.unique(np.stack([owners[sampled], batch.policy_versions[sampled]]), axis=1)
    mixed = np.count_nonzero(np.bincount(pairs[0], minlength=batch.num_trajectories) > 1)
    return {
        "async/staleness/mean": float(behind.mean()),
        "async/staleness/max": float(behind.max()),
        "async/mixed_frac": float(mixed / batch.num_trajectories),
    }


def _sandboxes(outcomes: Sequence[GroupOutcome]) -> dict[str, float]:
    """The most of each count that a host of episodes saw when a group of the step ended."""
    seen = [
        asdict(outcome.sandboxes) for outcome in outcomes if outcome.sandboxes is not None
    ]
    names = ("running", "starting", "waiting", "failed") if seen else ()
    return {
        f"sandbox/{name}": float(max(counts[name] for counts in seen)) for name in names
    }


def _unscored(outcomes: Sequence[GroupOutcome]) -> dict[str, float]:
    """The most groups that waited for a reward model's scores; nothing without one."""
    most = max((outcome.unscored for outcome in outcomes), default=0)
    return {"perf/unscored_groups": float(most)} if most else {}


def _abandoned(outcomes: Sequence[GroupOutcome]) -> dict[str, float]:
    """The most calls that ran on in one process after they were given up."""
    counts = [outcome.abandoned for outcome in outcomes if outcome.abandoned is not None]
    return {ABANDONED: float(max(counts))} if counts else {}


def _lag(outcomes: Sequence[GroupOutcome]) -> dict[str, float]:
    """The longest that an event loop of the step's episodes stood still; what kept one in a worker
    is told here too."""
    lags = [outcome.lag for outcome in outcomes if outcome.lag is not None]
    for where in filter(None, (lag.where for lag in lags)):
        tell_blocked(where)
    return {LAG: max(lag.seconds for lag in lags)} if lags else {}


def _numbers(stats: Stats) -> dict[str, float]:
    """Each statistic's mean under its name; of those whose extreme matters, the maximum beside
    it."""
    numbers = {name: stat.mean for name, stat in stats.items() if name not in _WITH_MAX}
    for name in _WITH_MAX & stats.keys():
        numbers |= {f"{name}/mean": stats[name].mean, f"{name}/max": stats[name].max}
    for critic in [
        name.removesuffix("/return_sq") for name in numbers if "/return_sq" in name
    ]:
        returns, errors = (
            numbers[f"{critic}/{name}_sq"] - numbers[f"{critic}/{name}"] ** 2
            for name in ("return", "error")
        )
        numbers[f"{critic}/explained_variance"] = (
            1 - errors / returns if returns > 0 else math.nan
        )
    # This is Kish's effective sample size, as a share of the trained tokens.
    if numbers.get("mismatch/weight_sq"):
        numbers["mismatch/ess"] = (
            numbers["mismatch/weight"] ** 2 / numbers["mismatch/weight_sq"]
        )
    return numbers
