"""Simulated run: the controller's own code on a virtual clock, over a cluster with seeded faults.

Real are the loop, the rollout service with its admission, the Ray pool with its places and calls,
the task sampler, the ledger and the checkpoints, with their files. Simulated are time, threads, the
workers behind Ray, and the learner, whose weights are the list of what trained them.

``BrokenRuleError`` names what must never be; see ``Checks``.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.algorithms import FilterResult
from agentrl.config import StageConfig
from agentrl.controller.admission import RolloutState
from agentrl.controller.checkpoints import Checkpoints, Manifest, newest_step
from agentrl.controller.checkpoints.checkpointing import Checkpointing
from agentrl.controller.cluster.ray_rollout_pool import RayRolloutPool
from agentrl.controller.cluster.ray_runtime import ActorCalls
from agentrl.controller.cluster.rollout_pool import Incident
from agentrl.controller.ledger import Ledger
from agentrl.controller.loop import train
from agentrl.controller.rollout_service import HandOver, RolloutService
from agentrl.controller.schedule import GroupRecorder
from agentrl.controller.stage.stage_run import StageRun
from agentrl.controller.state import TrainState
from agentrl.controller.stop_request import StopRequest
from agentrl.errors import (
    EngineError,
    RankLostError,
    RunInterruptedError,
    StoreError,
    close_after,
)
from agentrl.rollouts import KILLS_WORKER, GroupOutcome, GroupRequest
from agentrl.rollouts.samplers.prompt_sampler import PromptSampler
from agentrl.rollouts.samplers.settings import UniformSettings
from agentrl.rollouts.samplers.uniform import Uniform
from agentrl.training import LearningRole
from agentrl.training.save_result import SaveResult
from agentrl.types import Stats, Task, Trajectory, TrajectoryGroup, Turn
from tests.simulation.cluster import Cluster, Faults, Weights, Worker
from tests.simulation.virtual import Process, VirtualTime

TASKS = [Task(str(n)) for n in range(40)]
HORIZON_S = 100_000.0
"""No run takes as long, whatever befalls it: waits have deadlines below."""
LIFELINE_S = 5.0
MAX_DRIVERS = 60
LEAVING = (
    "worker_left",
    "worker_replaced",
    "worker_waits",
    "worker_stale",
    "worker_joined",
)
"""What is told of a drained node where nothing fails."""
FAULTY_S = 600.0
"""After so long nothing goes wrong any more, so that the run must end."""


class BrokenRuleError(AssertionError):
    """Something was, that must never be."""


def holds(condition: bool, what: str) -> None:
    if not condition:
        raise BrokenRuleError(what)


@dataclass(frozen=True)
class Scenario:
    """What one seed simulates.

    Args:
        stage: as configured.
        num_workers, num_nodes: of the cluster.
        most_workers: where nodes have room.
        faults: what goes wrong.
    """

    stage: StageConfig
    num_workers: int
    most_workers: int
    num_nodes: int
    faults: Faults

    @classmethod
    def drawn(cls, time: VirtualTime) -> Scenario:
        """Sizes, a schedule, and none, some or all of the faults, by the seed."""
        rng = time.random
        size, group = rng.choice((1, 2, 4)), rng.choice((1, 2, 4, 32))
        staleness = rng.choice((0, 0, 1, 2))
        sections: dict[str, Any] = {
            "train": {"batch_prompts": size, "steps": rng.choice((6, 12))},
            "rollout": {
                "group_size": group,
                "schedule": "async" if staleness else "sync",
                "max_staleness": staleness,
                "on_stale": "wait",
                "max_resample_ratio": 0.0,
                # refused beside on_stale: wait
                "oversample": 0.0 if staleness else rng.choice((0.0, 0.5)),
            },
            "checkpoint": {
                "every": rng.choice((1, 2, 5)),
                "asynchronous": rng.random() < 0.5,
            },
        }
        stage = StageConfig(name="rl", **sections)
        never = float("inf")
        usual = {
            "worker_dies_s": 30.0,
            "worker_hangs_s": 30.0,
            "node_lost_s": 60.0,
            "ranks_die_s": 30.0,
            "node_joins_s": 60.0,
            "node_drains_s": 60.0,
            "driver_dies_s": 30.0,
            "clock_jumps_s": 60.0,
            "engine_fails": 0.1,
            "episode_fails": 0.1,
        }
        none = {name: never if name.endswith("_s") else 0.0 for name in usual}
        chosen = rng.sample(sorted(usual), rng.choice((0, 1, 1, 1, 2, 4, 10)))
        faults = Faults(**{**none, **{name: usual[name] for name in chosen}})
        workers = rng.choice((1, 2, 4))
        return cls(
            stage, workers, workers + rng.choice((0, 1, 3)), rng.choice((1, 2, 3)), faults
        )

    def smaller(self) -> Iterator[Scenario]:
        """Scenarios with one thing less."""
        for name, value in asdict(self.faults).items():
            none = float("inf") if name.endswith("_s") else 0.0
            if value != none:
                yield replace(self, faults=replace(self.faults, **{name: none}))
        if self.most_workers > self.num_workers:
            yield replace(self, most_workers=self.num_workers)
        if self.num_workers > 1:
            yield replace(self, num_workers=self.num_workers // 2)
        if self.num_nodes > 1:
            yield replace(self, num_nodes=self.num_nodes - 1)
        train, rollout = self.stage.train, self.stage.rollout
        for section in (
            {"train": {"steps": (train.steps or 2) // 2}},
            {"train": {"batch_prompts": train.batch_prompts // 2}},
            {"rollout": {"group_size": rollout.group_size // 2}},
            {"rollout": {"oversample": 0.0}},
        ):
            ((name, values),) = section.items()
            ((key, value),) = values.items()
            old = getattr(getattr(self.stage, name), key)
            if value != old and (value or key == "oversample"):
                own = getattr(self.stage, name).replace(**values)
                yield replace(self, stage=self.stage.replace(**{name: own}))

    def told(self) -> str:
        """In words."""
        faults = [
            f"{name}={value:g}"
            for name, value in asdict(self.faults).items()
            if value not in (0.0, float("inf"))
        ]
        rollout = self.stage.rollout
        return (
            f"{self.stage.last_step} steps of {self.stage.train.batch_prompts} groups of "
            f"{rollout.group_size}, max_staleness={rollout.max_staleness}, "
            f"oversample={rollout.oversample:g}, {self.num_workers} to {self.most_workers} workers "
            f"on {self.num_nodes} nodes, faults: {', '.join(faults) or 'none'}"
        )


class _Ledger(Ledger):
    """Real rows; a death may come after any of them, and takes what was not synced."""

    def __init__(self, path: Path, driver: Driver) -> None:
        self._driver = driver
        self._locked_path = path
        super().__init__(path)
        self.synced = path.stat().st_size

    def _append(self, *args: Any, **detail: Any) -> None:
        super()._append(*args, **detail)
        self._driver.checks.entered(args[0], args[1], args[2], detail)
        self._driver.may_die()

    def sync(self) -> None:
        super().sync()
        self.synced = self._locked_path.stat().st_size


class Checks:
    """Holds what a run does to what it must do.

    - Each trained token is of the weights that its version names, and no older than the bound.
    - The versions that are published rise within an attempt.
    - Siblings have different seeds, and equal ids are equal episodes.
    - No draw is trained twice in the learner's lineage; draws that a checkpoint left open are
      issued before new ones, and new ones without a gap.
    - What is in flight stays within the admission's bound.
    """

    def __init__(
        self,
        stage: StageConfig,
        learner: Learner,
        restored: RolloutState,
        killers: set[int],
    ) -> None:
        self._stage = stage
        self._learner = learner
        self._to_come = set(restored.outstanding)
        self._next = restored.next_group_index
        self._open: Counter[int] = Counter()
        self._seen: dict[str, tuple[Any, ...]] = {}
        self._in_training = 0
        self._published = -1
        self.num_trajectories = 0
        self._killers = killers

    def entered(
        self, of: tuple[int, str, int], rollouts: list[int], to: str, detail: dict[str, Any]
    ) -> None:
        """A row of the ledger."""
        draw = of[2]
        if to == "running":
            self._open[draw] = len(rollouts)
            size = self._stage.train.batch_prompts
            bound = (self._stage.rollout.max_staleness + 1) * size
            bound += int(self._stage.rollout.oversample * size)
            number = len(self._open) + self._in_training
            holds(number <= bound, f"{number} groups are in flight, and {bound} may be")
        elif to == "taken":
            self._open.pop(draw, None)
        elif to in ("cancelled", "dropped", "failed", "rolled_back"):
            self._open[draw] -= len(rollouts)
            if self._open[draw] <= 0:
                del self._open[draw]
        if to == "dropped":
            reason = detail.get("reason")
            if reason == KILLS_WORKER:
                self._killers.add(draw)
            # what was played beyond the batches may come too late for any
            spare = self._stage.rollout.oversample > 0
            holds(
                spare or reason != "stale",
                f"group {draw} is lost by age, and on_stale is wait",
            )

    def submitted(self, requests: Sequence[GroupRequest]) -> None:
        for request in requests:
            draw = request.group_index
            if draw in self._to_come:
                self._to_come.discard(draw)
                continue
            holds(
                not self._to_come,
                f"draw {draw} is new, and {self._to_come} wait to be resumed",
            )
            holds(
                draw == self._next, f"draw {draw} is issued where {self._next} comes next"
            )
            self._next += 1

    def ended(self, trajectory: Trajectory) -> None:
        played = tuple(ids(turn)[0] for turn in trajectory.turns)
        known = self._seen.setdefault(trajectory.id, played)
        if trajectory.status.kind != "cancelled":
            holds(known == played, f"two episodes are called {trajectory.id}")
        for number, turn in enumerate(trajectory.turns):
            asked = int(turn.context[0].token_ids[0])
            holds(
                asked == number, f"turn {number} of {trajectory.id} was turn {asked} before"
            )

    def taken(self, groups: Sequence[TrajectoryGroup], state: TrainState) -> None:
        size = self._stage.train.batch_prompts
        number = len(groups) + len(self._killers)
        holds(number >= size, f"a batch of {len(groups)} groups where {size} are due")
        self._in_training = size
        for group in groups:
            finished = group.finished
            self.num_trajectories += len(finished)
            number = self._stage.rollout.group_size
            holds(len(finished) == number, f"group {group.group_index} has lost rollouts")
            seeds = {ids(one.turns[0])[1] for one in finished}
            holds(len(seeds) == number, f"siblings of {group.group_index} share a seed")
            for trajectory in finished:
                for turn in trajectory.turns:
                    version = turn.completion[0].policy_version
                    assert version is not None
                    true = self._learner.truths.get(version)
                    holds(
                        ids(turn)[0] == true,
                        f"a token of {trajectory.id} says version {version}, and is not of it",
                    )
                    age = state.versions["main"] - version
                    bound = self._stage.rollout.max_staleness
                    holds(
                        0 <= age <= bound,
                        f"a token of {trajectory.id} is {age} versions old",
                    )

    def published(self, version: int, served: Collection[Weights | None]) -> None:
        holds(version > self._published, f"version {version} comes after {self._published}")
        self._published = version
        self._in_training = 0


def ids(turn: Turn) -> tuple[int, int]:
    """What a turn's tokens say: the weights that made it, and its seed."""
    first, second = turn.completion[0].token_ids.tolist()
    return first, second


class Learner:
    """Weights that are the list of what trained them."""

    name = "actor"
    trains = True

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.trained: set[int] = set()
        self.truths: dict[int, int] = {}
        """Which weights each version was of, in this lineage."""
        self.truth = 0
        self._result: SaveResult | None = None
        self._until = 0.0

    def call(self, method: Any, *args: Any) -> Any:
        self.require()
        answer = getattr(self, method.__name__)(*args)
        self.require()
        return answer

    def require(self) -> None:
        """The ranks live."""
        if not self._driver.world.cluster.has_ranks:
            raise RankLostError("the worker of rank 0 died")

    def train(self, groups: Sequence[TrajectoryGroup]) -> None:
        for group in groups:
            again = group.group_index in self.trained
            holds(not again, f"group {group.group_index} is trained twice")
            self.trained.add(group.group_index)
        self.truth = self._driver.world.new_truth()

    def begin_save(self, folder: Path) -> None:
        folder.mkdir()
        truths = [[version, truth] for version, truth in self.truths.items()]
        saved = {"trained": sorted(self.trained), "truths": truths, "truth": self.truth}
        path = folder / "weights.json"
        path.write_text(json.dumps(saved))
        fails = not self._driver.world.cluster.is_calm and self._driver.world.disk_is_full()
        error = StoreError("no space left") if fails else None
        if fails:
            path.unlink()
        self._result = SaveResult(1.0, error)
        self._until = (
            self._driver.process.threads.now() + self._driver.world.time.random.random()
        )

    def save_result(self, wait: bool) -> SaveResult | None:
        left = self._until - self._driver.process.threads.now()
        if left > 0:
            if not wait:
                return None
            self._driver.process.sleep(left)
        return self._result

    def load(self, folder: Path) -> None:
        saved = json.loads((folder / "weights.json").read_text())
        self.trained, self.truth = set(saved["trained"]), saved["truth"]
        self.truths = dict(saved["truths"])


class _Recorder(GroupRecorder):
    """Sees each episode."""

    last_evaluated: tuple[int, dict[str, float]] = (0, {})

    def __init__(self, driver: Driver) -> None:
        self.results: dict[str, Any] = {}
        self._driver = driver
        self.timer = self

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        yield

    def record_ended(self, trajectory: Trajectory) -> None:
        self._driver.checks.ended(trajectory)

    def record_outcome(self, outcome: GroupOutcome) -> None:
        for trajectory in (*outcome.retried, *outcome.played.trajectories):
            self._driver.checks.ended(trajectory)

    def record_failures(self, incidents: Sequence[Incident]) -> None:
        faults = self._driver.world.scenario.faults
        means = [faults.worker_dies_s, faults.worker_hangs_s, faults.node_lost_s]
        # an engine is torn where ranks die while it is sent their weights
        means.append(faults.ranks_die_s)
        may_be_lost = faults.engine_fails or min(means) < float("inf")
        leaves = LEAVING if faults.node_drains_s < float("inf") else ()
        for incident in incidents:
            may_be = may_be_lost or incident.event in leaves
            holds(bool(may_be), f"no worker has a fault, and the run says: {incident}")

    def take_episodes(self, groups: Any, waiting: Any) -> list[Trajectory]:
        return []

    def sync(self) -> None: ...

    def record_unsaved(self, running: Any) -> None: ...

    def uncounted(self) -> tuple[int, ...]:
        return ()

    def record_failed_checkpoint(self, what: str, error: StoreError) -> None:
        self._driver.world.counts["failed_checkpoints"] += 1


@dataclass
class _Batch:
    groups: Sequence[TrajectoryGroup]

    def mini_batches(self, num_epochs: int) -> list[_Batch]:
        return [self]


class _Run:
    """What the loop works with: ``StageRun``'s own where that decides."""

    num_epochs = 1
    skipped: Any = None
    next_groups = StageRun.next_groups
    publish = StageRun.publish
    checkpoint_if_due = StageRun.checkpoint_if_due

    def __init__(self, driver: Driver, restored: tuple[Path, Manifest] | None) -> None:
        self._driver = driver
        self.stage = driver.world.scenario.stage
        self.algorithm = self.evaluation = self.skipped = self
        self.ended = False
        self.restored = restored
        self.stop = driver.stop
        self.recorder = driver.recorder
        self.timer = driver.recorder
        self.schedule = driver.service
        self.learners = [driver.learner]
        self.passes = {"main": self}
        self.warms_up = False
        self.checkpointing = driver.checkpointing

    def restore(self) -> TrainState:
        learner = self._driver.learner
        if self.restored is None:
            return TrainState()
        folder, manifest = self.restored
        learner.call(LearningRole.load, folder / learner.name)
        return manifest.state

    def at_start(self, state: TrainState, *, resumed: bool) -> None: ...

    def if_due(self, state: TrainState) -> None: ...

    def assemble(self, groups: Any, state: TrainState) -> dict[str, _Batch]:
        self._driver.checks.taken(groups, state)
        return {"main": _Batch(groups)}

    def forward(self, batch: _Batch) -> _Batch:
        return batch

    def update(self, batch: _Batch, mini_batch: _Batch) -> Stats:
        self._driver.process.sleep(2.0 * self._driver.world.time.random.random())
        self._driver.learner.require()
        self._driver.learner.train(batch.groups)
        return Stats()

    def next_state(self, own: Any, stats: Stats) -> dict[str, Any]:
        return {}

    def has_signal(self, batches: Any) -> bool:
        return True

    def record(self, *args: Any) -> None:
        self.checkpointing.settle(wait=False)
        self.recorder.record_failures(self.schedule.take_failures())
        self.schedule.take_counts()
        self.schedule.take_rates()

    def check(self) -> None: ...

    def finish(self, state: TrainState) -> TrainState:
        return state


class Driver:
    """One process that trains, from its start or a checkpoint to its end or its death."""

    checks: Checks
    checkpointing: Checkpointing
    learner: Learner
    service: RolloutService

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.folder = folder
        self.process = Process(world.time)
        self.stop = StopRequest()
        self.recorder = _Recorder(self)
        self.state: TrainState | None = None
        self.ended_by: BaseException | None = None
        self.is_over = False
        self.process.begin(self._run, "loop")

    def may_die(self) -> None:
        """A ledger row was written."""
        world = self.world
        deadly = (
            world.scenario.faults.driver_dies_s < float("inf") and not world.cluster.is_calm
        )
        if deadly and world.time.random.random() < 0.002:
            self.die()

    def die(self) -> None:
        """As by SIGKILL, or with its machine."""
        self.is_over = True
        self.world.bury(self)
        self.process.kill()

    def _run(self) -> None:
        try:
            self.state = self._train()
        except (EngineError, RunInterruptedError, StoreError) as error:
            self.ended_by = error
        self.is_over = True

    def _train(self) -> TrainState:
        world = self.world
        cluster = world.cluster
        calls = ActorCalls(
            lambda number: f"rollout worker {number}",
            lambda message, number, traceback: EngineError(message, retryable=False),
            600.0,
            put=lambda value: value,
            kill=cluster.kill,
            wait=lambda refs, **_: self.process.sleep(1.0),
            node_answers=cluster.node_answers,
        )
        workers = [cluster.start(number) for number in range(world.scenario.num_workers)]
        pool = RayRolloutPool(
            workers,
            calls,
            start=cluster.start,
            max_restarts=8,
            answer_s=30.0,
            most=world.scenario.most_workers,
            look=cluster.look,
            threads=self.process.threads,
        )
        self.pool = pool
        self._left: HandOver | None = None
        try:
            while True:
                cluster.has_ranks = True
                if self._left is None:
                    pool.setup("a stage")  # type: ignore[arg-type]
                try:
                    return self._attempt(self._left)
                except RankLostError:
                    world.counts["restarts"] += 1
                    self.process.sleep(10.0 * world.time.random.random())
        finally:
            pool.close()

    def _attempt(self, left: HandOver | None) -> TrainState:
        """From a checkpoint to the end, or until ranks are lost."""
        world, stage = self.world, self.world.scenario.stage
        checkpoints = Checkpoints(self.folder / "checkpoints", keep_last=2)
        restored = checkpoints.latest()
        first = RolloutState(0, (), 0, 0) if restored is None else restored[1].rollouts
        rollouts = left.state if left and left.state else first
        self.learner = Learner(self)
        if hasattr(self, "checks"):
            world.counts["trajectories"] += self.checks.num_trajectories
        self.checks = Checks(stage, self.learner, rollouts, world.killers)
        resumes = (self.folder / "ledger.jsonl").exists()
        self.ledger = _Ledger(self.folder / "ledger.jsonl", self)
        try:
            if resumes:
                self.ledger.restore(first.ledger_offset)
            self.service = service = RolloutService(
                stage,
                _Watched(self.pool, self.checks),
                PromptSampler(
                    TASKS, Uniform(UniformSettings(), TASKS, seed=0, shuffle=False)
                ),
                self.ledger,
                rollouts,
                send_weights=self._send_weights,
                keep_group=lambda group: FilterResult(True),
                recorder=self.recorder,
                wait_s=20_000.0,
                stop=self.stop,
                playing=left.playing if left else {},
                on_wait=self.learner.require,
                threads=self.process.threads,
            )
            self.checkpointing = Checkpointing(
                stage.name,
                checkpoints,
                [self.learner],  # type: ignore[list-item]
                service,
                self.recorder,  # type: ignore[arg-type]
            )
            try:
                state = train(_Run(self, restored))  # type: ignore[arg-type]
                self.checkpointing.close()
            except RankLostError as error:
                close_after(error, self.checkpointing.close, "writing the last checkpoint")
                self._left = service.hand_over(newest_step(checkpoints.folder))
                raise
            except BaseException:
                service.close()
                raise
            service.close()
        finally:
            self.ledger.close()
        return state

    def _send_weights(self, policy: str, version: int, mode: Any) -> None:
        self.learner.require()
        weights = Weights(version, self.learner.truth)
        self.learner.truths[version] = weights.truth
        self.world.cluster.newest = weights
        self.pool.update(weights, version, mode)  # type: ignore[arg-type]
        number = len(self.pool._places.by_number)
        holds(number <= self.world.scenario.most_workers, f"there are {number} workers")
        serving = [place.number for place in self.pool._places.serving]
        self.checks.published(version, [])
        for number in serving:
            worker: Worker = self.pool._hosts[number].actor
            served = worker.weights
            holds(
                not (worker.process.alive and self.world.cluster.has_ranks)
                or served == weights,
                f"worker {number} serves {served} where {weights} is published",
            )


@dataclass
class _Watched:
    """The pool; what it is given is looked at."""

    pool: RayRolloutPool
    checks: Checks

    def submit(self, requests: Sequence[GroupRequest]) -> None:
        self.checks.submitted(requests)
        self.pool.submit(requests)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pool, name)


@dataclass
class World:
    """One simulated run with its drivers, until it has all its steps.

    Args:
        folder: of its files, on a fast disk.
        seed: of everything.
    """

    folder: Path
    seed: int
    given: Scenario | None = None
    """In place of the seed's own."""
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.time = VirtualTime(self.seed)
        own = Scenario.drawn(self.time)
        self.scenario = self.given or own
        scenario = self.scenario
        kept = scenario.num_workers
        self.cluster = Cluster(self.time, scenario.num_nodes, scenario.faults, kept)
        self._truths = 0
        self.driver: Driver
        self.killers: set[int] = set()
        """Groups that took three workers with them: a batch may lack them."""

    def new_truth(self) -> int:
        self._truths += 1
        return self._truths

    def disk_is_full(self) -> bool:
        asynchronous = self.scenario.stage.checkpoint.asynchronous
        return asynchronous and self.time.random.random() < 0.1

    def run(self) -> Counter[str]:
        """Runs to the end.

        Raises:
            BrokenRuleError: something was that must never be.
        """
        try:
            return self._run()
        except AssertionError as error:
            if isinstance(error, BrokenRuleError):
                raise
            raise BrokenRuleError(f"{type(error).__name__}: {error}") from error
        finally:
            self.time.exhume()

    def _run(self) -> Counter[str]:
        self.cluster.begin_faults()
        self.cluster.happens(self.scenario.faults.driver_dies_s, self._end_driver)
        self.cluster.happens(self.scenario.faults.clock_jumps_s, self._jump)

        def calm() -> None:
            self.cluster.is_calm = True

        self.time.at(FAULTY_S, calm, self.cluster.process)
        for number in range(MAX_DRIVERS):
            folder = self.folder / f"driver{number}"
            if number:
                self._survives(self.driver, folder)
            else:
                folder.mkdir(parents=True)
            self.driver = driver = Driver(self, folder)
            self.counts["drivers"] += 1
            self.time.run(self._driver_is_over, HORIZON_S)
            if hasattr(driver, "checks"):
                self.counts["trajectories"] += driver.checks.num_trajectories
            if driver.process.error is not None:
                raise driver.process.error
            if driver.state is not None:
                self._check_end(driver)
                self.counts["events"] = self.time.num_events
                self.counts["faults"] = self.cluster.num_faults
                return self.counts + self.cluster.counts
            if driver.ended_by is not None:
                self.counts[type(driver.ended_by).__name__] += 1
                self._is_a_named_end(driver.ended_by)
            if driver.process.alive:
                driver.process.kill()
            self.time.at(LIFELINE_S, self.cluster.end_all, self.cluster.process)
            until = self.time.now_s + 2 * LIFELINE_S
            self.time.at(2 * LIFELINE_S, lambda: None, self.cluster.process)
            self.time.run(partial(self._it_is, until), HORIZON_S)
        raise BrokenRuleError(f"{MAX_DRIVERS} drivers did not bring the run to its end")

    def _it_is(self, then_s: float) -> bool:
        return self.time.now_s >= then_s

    def _driver_is_over(self) -> bool:
        return self.driver.is_over or self.driver.process.error is not None

    def bury(self, driver: Driver) -> None:
        """What a dead driver leaves on disk."""
        ledger = getattr(driver, "ledger", None)
        self._kept = None
        if ledger is not None:
            size = ledger._locked_path.stat().st_size
            self._kept = self.time.random.randint(ledger.synced, size)

    def _survives(self, dead: Driver, folder: Path) -> None:
        shutil.copytree(dead.folder, folder)
        ledger = folder / "ledger.jsonl"
        if dead.ended_by is None and self._kept is not None and ledger.exists():
            with ledger.open("r+b") as file:
                file.truncate(self._kept)
        shutil.rmtree(dead.folder)

    def _end_driver(self) -> None:
        driver = self.driver
        if driver.is_over:
            return
        if self.time.random.random() < 0.3:
            driver.stop.ask("SIGTERM")
        else:
            driver.die()

    def _jump(self) -> None:
        self.driver.process.ahead_s += self.time.random.choice((1.0, 100.0, 5000.0))

    def _is_a_named_end(self, error: BaseException) -> None:
        named = (
            isinstance(error, RunInterruptedError)
            or "rollout workers died" in str(error)
            or (isinstance(error, StoreError) and "no space" in str(error))
        )
        holds(named, f"the run ended by {type(error).__name__}: {error}")

    def _check_end(self, driver: Driver) -> None:
        stage = self.scenario.stage
        assert driver.state is not None
        counts = Ledger(driver.folder / "ledger.jsonl").counts()
        group_size = stage.rollout.group_size
        wanted = stage.last_step * stage.train.batch_prompts
        trained = len(driver.learner.trained)
        holds(driver.state.step == stage.last_step, f"ended at step {driver.state.step}")
        lost = counts["dropped"] // group_size
        holds(
            wanted - lost <= trained <= wanted, f"{trained} groups are trained of {wanted}"
        )
        if not stage.rollout.oversample:
            own = driver.learner.trained | self.killers
            missing = sorted(set(range(max(own, default=0))) - own)
            holds(not missing, f"the groups {missing} were issued, and never trained")
        open_ = {to: n for to, n in counts.items() if to in OPEN}
        holds(not open_, f"the ledger ends with {open_}")
        number = trained * group_size
        holds(counts["trained"] == number, f"{counts['trained']} are trained, not {number}")


OPEN = ("running", "finished", "buffered", "taken")
