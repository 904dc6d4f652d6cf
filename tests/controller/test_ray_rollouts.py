"""Rollout workers apart from the ranks that train: weights reach them, episodes come back, deaths
are named.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.config.sections import PlacementConfig, PoolConfig
from agentrl.controller.cluster import ray_runtime
from agentrl.controller.cluster.rollout_pool import (
    Incident,
    RolloutWorkerSpec,
    collect_groups,
)
from agentrl.engines import EnginePlace, EnginePlan, WeightSender
from agentrl.engines.torch import TorchEngine, TorchEngineSpec
from agentrl.envs import Env, EnvSpec
from agentrl.errors import AgentRLError, EngineError, TrainingError
from agentrl.rollouts import GroupOutcome, GroupRequest
from agentrl.rollouts.batching import make_batch
from agentrl.types import (
    Action,
    BatchShard,
    Completion,
    GenerateRequest,
    Message,
    Observation,
    StepResult,
    Task,
)
from tests.controller.tiny import (
    TASKS,
    Cluster,
    engine_spec,
    episodes,
    made_groups,
    roles,
    rollouts,
)
from tests.kit.forks import FORKS
from tests.kit.waiting import DEADLINE_S, gather, is_alive, until

pytestmark = pytest.mark.slow


def workers(number: int | tuple[int, int], **settings: Any) -> Cluster:
    """One rank, and rollout workers apart from it."""
    from agentrl.controller.cluster.ray_role_group import RayRoleGroup
    from agentrl.controller.cluster.ray_rollout_pool import rollout_workers
    from agentrl.controller.cluster.weight_publisher import ServedSync

    placement = PlacementConfig(rollout_workers=number, **settings)
    return Cluster(RayRoleGroup(placement), rollout_workers(placement), ServedSync())


@pytest.fixture(scope="module")
def started(ray_started: None) -> Iterator[Cluster]:
    cluster = workers(2)
    yield cluster
    cluster.close()


@pytest.fixture
def group(started: Any, model: Path) -> Any:
    """Two workers; what an earlier test killed has been replaced."""
    started.setup(model)
    started.pool.take_failures()
    return started


def requests(number: int, first: int = 0) -> list[GroupRequest]:
    """Groups of two, of which each of two workers plays every other."""
    return [GroupRequest(index, TASKS[index], 2) for index in range(first, first + number)]


def test_episodes_are_played_outside_of_the_ranks_with_their_weights(group: Any) -> None:
    (trainer,) = group.group.describe()
    players = group.pool.describe()
    assert trainer.rank == 0
    assert len({worker.rollout_worker for worker in players}) == 2
    assert len({place.pid for place in (trainer, *players)} | {os.getpid()}) == 4
    assert [report.version for report in group.publish(3)] == [3, 3]
    outcomes = collect_groups(group.pool, requests(4), DEADLINE_S)
    assert [outcome.request.group_index for outcome in outcomes] == [0, 1, 2, 3]
    assert {
        v for o in outcomes for t in o.group.trajectories for v in t.policy_versions
    } == {3}


def test_of_two_ranks_one_has_the_engine_and_both_take_turns_with_it(
    ray_started: None, model: Path
) -> None:
    from agentrl.controller.cluster.ray_role_group import RayRoleGroup

    group = RayRoleGroup(PoolConfig(world_size=2))
    cluster = Cluster(group, group.pool_of([0]))
    try:
        group.setup(roles(model))
        group.on_all("sharing the servers", "share_server", (0, 1), (), True)
        # the rank without an engine gathers in the dtype of the other's
        served = engine_spec(model, dtype="bfloat16")
        cluster.pool.setup(replace(rollouts(model), engine=served))
        for version in (1, 2):
            assert [report.version for report in cluster.publish(version)] == [version]
            outcomes = collect_groups(cluster.pool, requests(2), DEADLINE_S)
            played = [t for outcome in outcomes for t in outcome.group.trajectories]
            assert {v for t in played for v in t.policy_versions} == {version}
            group.call("phases", "enter", args=("update",))
    finally:
        cluster.close()


def test_groups_of_a_worker_that_is_killed_are_played_elsewhere_and_it_is_replaced(
    group: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "agentrl.controller.cluster")
    group.publish(1)
    killed = group.pool.describe()[1]
    group.pool.submit(requests(4))
    os.kill(killed.pid, signal.SIGKILL)
    outcomes = collected(group, 4)
    assert sorted(outcome.request.group_index for outcome in outcomes) == [0, 1, 2, 3]
    played = [
        trajectory for outcome in outcomes for trajectory in outcome.group.trajectories
    ]
    assert all(trajectory.status.finished for trajectory in played)
    assert {
        trajectory.attempt for trajectory in played if trajectory.group_index % 2 == 0
    } == {0}
    (loss,) = losses(group)
    again = {trajectory.group_index for trajectory in played if trajectory.attempt == 1}
    assert f"rollout worker {killed.rollout_worker} died: The actor " in str(loss)
    assert "\n" not in str(loss)
    assert loss.counts["count/replayed_groups"] == len(again)
    assert again <= {1, 3}
    assert killed.pid not in {place.pid for place in group.pool.describe()}
    events = ["worker_lost", "worker_replaced", "worker_stale", "worker_joined"]
    of_workers: list[Any] = []

    def has_all() -> bool:
        of_workers[:] = [one for one in map(vars, caplog.records) if "worker" in one]
        return len(of_workers) >= len(events)

    until(has_all)
    assert [one["event"] for one in of_workers] == events
    assert {one["worker"] for one in of_workers} == {killed.rollout_worker}
    # all that Ray tells
    assert "actor_died" in {vars(record).get("event") for record in caplog.records}


def test_a_worker_that_hangs_is_replaced_and_one_death_too_many_ends_the_run(
    ray_started: None, model: Path
) -> None:
    group = workers(2, worker_liveness_timeout_s=10.0, worker_restarts=1)
    try:
        group.setup(model)
        group.publish(1)
        stopped = group.pool.describe()[1].pid
        os.kill(stopped, signal.SIGSTOP)  # it lives, and does nothing
        group.pool.submit(requests(4))
        outcomes = collected(group, 4)
        assert sorted(outcome.request.group_index for outcome in outcomes) == [0, 1, 2, 3]
        (loss,) = losses(group)
        assert "rollout worker 1 did not answer within 10 s" in str(loss)
        assert stopped not in {place.pid for place in group.pool.describe()}
        until(lambda: not is_alive(stopped))

        os.kill(group.pool.describe()[0].pid, signal.SIGKILL)
        told = r"died 2 times .* PlacementConfig.worker_restarts=1 allows 1"
        with pytest.raises(EngineError, match=told):
            collect_groups(group.pool, requests(2, first=4), DEADLINE_S)
        with pytest.raises(AgentRLError, match="poisoned"):
            group.setup(model)
    finally:
        group.close()


class FragileSpec(TorchEngineSpec):
    """An engine that has a fault in the first worker that builds it."""

    folder: str
    fault: str

    def build(self, place: EnginePlace, sender: WeightSender | None = None) -> Any:
        engine = TorchEngine(place)
        with contextlib.suppress(FileExistsError):
            Path(self.folder, "claimed").touch(exist_ok=False)
            generate = engine.generate

            async def first(request: GenerateRequest) -> Completion:
                engine.generate = generate  # type: ignore[method-assign]
                if self.fault == "closed":
                    engine.close()
                    return await generate(request)
                raise ZeroDivisionError("by none")

            def begin_update(version: int) -> Any:
                raise ZeroDivisionError("by none")

            if self.fault == "update":
                engine.begin_update = begin_update  # type: ignore[method-assign]
            else:
                engine.generate = first  # type: ignore[method-assign]
        return engine


@pytest.mark.parametrize("fault", ["generate", "closed", "update"])
def test_a_fault_of_one_engine_costs_an_episode_or_its_worker_and_not_the_run(
    started: Any, model: Path, tmp_path: Path, fault: str
) -> None:
    started.setup(model)
    started.pool.take_failures()
    plan = EnginePlan(
        FragileSpec(folder=str(tmp_path), fault=fault), engine_spec(model).place
    )
    started.pool.setup(RolloutWorkerSpec(plan, episodes(max_retries=1)))
    assert len(started.publish(1)) == (1 if fault == "update" else 2)
    started.pool.submit(requests(4))
    outcomes = collected(started, 4)
    played = [
        trajectory for outcome in outcomes for trajectory in outcome.group.trajectories
    ]
    assert all(trajectory.status.finished for trajectory in played)
    assert {v for trajectory in played for v in trajectory.policy_versions} == {1}
    retried = [str(one.status) for outcome in outcomes for one in outcome.retried]
    lost = [str(loss) for loss in losses(started)]
    if fault == "generate":
        assert (retried, lost) == (["failed(engine)"], [])
    else:
        (told,) = lost
        assert (
            "its engine is closed" if fault == "closed" else "ZeroDivisionError"
        ) in told


def test_a_silent_worker_holds_neither_groups_nor_cancellations_nor_a_checkpoint(
    ray_started: None, model: Path
) -> None:
    group = workers(2, worker_liveness_timeout_s=1200.0)
    stopped = 0
    try:
        group.setup(model)
        group.publish(1)
        stopped = group.pool.describe()[1].pid
        os.kill(stopped, signal.SIGSTOP)
        start = time.monotonic()
        group.pool.submit(requests(4))
        # an answer of the silent one would take forever, and its deadline is twenty minutes
        outcomes = collected(group, 2)
        assert {outcome.request.group_index for outcome in outcomes} == {0, 2}
        group.pool.cancel([("", 1)])
        assert group.pool.in_flight() == []
        assert time.monotonic() - start < 600
        os.kill(stopped, signal.SIGCONT)
        assert {o.request.group_index for o in collected(group, 2)} == {1, 3}
        assert losses(group) == []
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(stopped, signal.SIGCONT) if stopped else None
        group.close()


def test_a_worker_that_takes_anothers_place_serves_the_weights_published_last(
    group: Any,
) -> None:
    for worker in group.pool.describe():
        os.kill(worker.pid, signal.SIGKILL)
    group.publish(7)  # it meets the dead ones, or those that took their places
    assert played_versions(group) == {7}
    # the trainer is a step ahead of what new workers must serve
    group.publish(8)
    (before,) = group.group.call("actor", "checksum")
    train(group)
    assert group.group.call("actor", "checksum") != [before]
    for worker in group.pool.describe():
        os.kill(worker.pid, signal.SIGKILL)
    assert played_versions(group) == {8}


def test_a_worker_that_died_between_two_stages_is_replaced(group: Any, model: Path) -> None:
    os.kill(group.pool.describe()[0].pid, signal.SIGKILL)
    group.setup(model)
    group.publish(1)
    outcomes = collect_groups(group.pool, requests(2), DEADLINE_S)
    assert {t.attempt for outcome in outcomes for t in outcome.group.trajectories} == {0}
    assert [loss.counts["count/replayed_groups"] for loss in losses(group)] == [0]


def test_a_group_that_was_cancelled_is_not_played_again(group: Any) -> None:
    group.pool.submit(requests(2))
    for worker in group.pool.describe():
        os.kill(worker.pid, signal.SIGKILL)
    group.pool.cancel([("", 0), ("", 1)])
    outcomes = collected(group, 2)
    assert {t.status.kind for o in outcomes for t in o.group.trajectories} <= {
        "cancelled",
        "terminated",
        "truncated",
    }
    assert {
        t.attempt
        for o in outcomes
        for t in o.group.trajectories
        if t.status.kind != "cancelled"
    } <= {0}


def test_what_runs_on_any_worker_is_saved(group: Any) -> None:
    group.pool.submit(requests(4))
    saved = group.pool.in_flight()
    arrived = group.pool.collect(0.0)
    # a group may end between the two calls, and is then in both
    running = {one.group_index for one in saved}
    assert running | {one.request.group_index for one in arrived} == {0, 1, 2, 3}
    assert len(running) == len(saved)
    assert {len(one.rollouts) for one in saved} <= {2}


def losses(group: Any) -> list[Incident]:
    return [one for one in group.pool.take_failures() if one.event == "worker_lost"]


def played_versions(group: Any) -> set[int]:
    """Of the tokens of four groups more."""
    group.pool.submit(requests(4))
    outcomes = collected(group, 4)
    return {v for o in outcomes for t in o.group.trajectories for v in t.policy_versions}


def train(group: Any) -> None:
    """A step of the trainer, which publishes nothing."""
    batch = make_batch(made_groups(0, 1), credit=np.array([1, -1, 1, -1], np.float32))
    rows = np.arange(batch.num_samples)
    weights = np.full(rows.size, 1 / batch.num_tokens)
    columns = dict.fromkeys(("old_logprobs", "advantages"), batch.rollout_logprobs)
    batch = replace(batch, **columns)
    shard = BatchShard(batch, rows, tuple((int(row),) for row in rows), weights)
    group.group.call("actor", "update", shards=[shard])


def collected(group: Any, number: int) -> list[GroupOutcome]:
    """The next so many groups that come to their end."""
    return gather(group.pool.collect, number)


def test_workers_are_placed_on_another_node(model: Path) -> None:
    """Two Ray nodes in one machine; only the second has what the rollout workers ask for."""
    found: Any = FORKS.Queue()
    driver = FORKS.Process(target=_over_two_nodes, args=(model, found))
    driver.start()
    try:
        nodes, here, versions = found.get(timeout=DEADLINE_S)
    finally:
        driver.join(DEADLINE_S)
        driver.kill()
    assert len(set(nodes)) == 1
    assert here not in nodes
    assert versions == {5}


def _over_two_nodes(model: Path, found: Any) -> None:
    import ray
    from ray.cluster_utils import Cluster

    from agentrl.controller.cluster.ray_cluster import start_ray

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False}
    )
    # room for the rank too, which Ray may place there
    cluster.add_node(num_cpus=3, resources={"rollout": 2})
    try:
        start_ray(3, cluster.address)
        group = workers(2, worker_resources={"rollout": 1})
        group.setup(model)
        group.publish(5)
        outcomes = collect_groups(group.pool, requests(2), DEADLINE_S)
        versions = {
            v for o in outcomes for t in o.group.trajectories for v in t.policy_versions
        }
        nodes = [worker.node for worker in group.pool.describe()]
        found.put((nodes, ray.get_runtime_context().get_node_id(), versions))
        group.close()
        ray.shutdown()
    finally:
        cluster.shutdown()


def test_a_worker_whose_node_is_gone_takes_the_place_that_ray_reserves_anew(
    model: Path,
) -> None:
    found: Any = FORKS.Queue()
    driver = FORKS.Process(target=_over_a_node_that_goes, args=(model, found))
    driver.start()
    try:
        before, events, after = found.get(timeout=DEADLINE_S)
    finally:
        driver.join(DEADLINE_S)
        driver.kill()
    assert before != after
    assert events.count("node_lost") == 1


def _over_a_node_that_goes(model: Path, found: Any) -> None:
    import ray
    from ray.cluster_utils import Cluster

    from agentrl.controller.cluster.ray_cluster import start_ray

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False}
    )
    far = cluster.add_node(num_cpus=1, resources={"rollout": 1})
    try:
        start_ray(3, cluster.address)
        group = workers(1, worker_resources={"rollout": 1}, worker_liveness_timeout_s=20.0)
        group.setup(model)
        group.publish(1)
        (before,) = [worker.node for worker in group.pool.describe()]
        cluster.remove_node(far, allow_graceful=False)
        incidents: list[Incident] = []

        def lost() -> bool:
            incidents.extend(group.pool.take_failures())
            return any(one.event == "node_lost" for one in incidents)

        until(lost)
        # room for the worker or for what Ray reserves, and not for both
        cluster.add_node(num_cpus=1, resources={"rollout": 1})
        until(lambda: group.pool._places.serving)
        incidents.extend(group.pool.take_failures())
        (after,) = [worker.node for worker in group.pool.describe()]
        found.put((before, [one.event for one in incidents], after))
        group.close()
        ray.shutdown()
    finally:
        cluster.shutdown()


class Held(Env):
    """Two turns; the second ends once a file is there."""

    def __init__(self, task: Task, folder: str) -> None:
        self.task = task
        self.folder = Path(folder)
        self.num_turns = 0

    async def reset(self, *, seed: int) -> Observation:
        return Observation(self.task.messages)

    async def step(self, action: Action) -> StepResult:
        self.num_turns += 1
        if self.num_turns == 2:
            (self.folder / f"held-{os.urandom(8).hex()}").touch()  # siblings share a seed
            while not (self.folder / "go").exists():
                await asyncio.sleep(0.01)
        told: Message = {"role": "user", "content": "on"}
        return StepResult(Observation((told,)), reward=1.0, terminated=self.num_turns == 2)


def test_a_worker_joins_with_a_node_and_leaves_it_when_ray_drains_it(
    model: Path, tmp_path: Path
) -> None:
    found: Any = FORKS.Queue()
    driver = FORKS.Process(
        target=_over_nodes_that_come_and_go, args=(model, tmp_path, found)
    )
    driver.start()
    try:
        told = found.get(timeout=DEADLINE_S)
    finally:
        driver.join(DEADLINE_S)
        driver.kill()
    assert told["joined"] == [(0, 1), (0, 1, 2), told["added"]]
    # a publish goes to all three, and each gets groups
    assert told["published"] == [2, 3, 2]
    assert set(told["attempts"]) == set(range(6))
    moved = {index for index, attempts in told["attempts"].items() if attempts == {1}}
    assert moved == set(told["moved"]) != set()
    assert {index: turns for index, turns in told["resumed"].items() if turns} == {
        index: {1} for index in moved
    }
    assert {
        frozenset(told["attempts"][index]) for index in told["attempts"].keys() - moved
    } == {frozenset({0})}
    assert told["versions"] == {2}
    # the others were never stopped
    assert told["after"] == told["before"]
    assert told["incidents"] == [
        f"rollout worker 2 leaves node {told['added']}, which Ray drains; its {len(moved)} groups "
        "go on in others"
    ]


def _over_nodes_that_come_and_go(model: Path, folder: Path, found: Any) -> None:
    import ray
    from ray.cluster_utils import Cluster

    from agentrl.controller.cluster.ray_cluster import start_ray

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False}
    )
    # room for the rank too, which Ray may place there
    cluster.add_node(num_cpus=3, resources={"rollout": 2})
    try:
        start_ray(3, cluster.address)
        group = workers((2, 3), worker_resources={"rollout": 1})
        pool = group.pool

        def pids() -> dict[int | None, int]:
            return {worker.rollout_worker: worker.pid for worker in pool.describe()}

        group.setup(model)
        held = EnvSpec(Held, {"folder": str(folder)})
        rollout = replace(episodes(env=held), save_episode_state=True)
        pool.setup(RolloutWorkerSpec(engine_spec(model), rollout))
        published = [len(group.publish(1))]
        before = pids()
        added = cluster.add_node(num_cpus=1, resources={"rollout": 1})
        until(lambda: len(pool._places.serving) == 3)
        (joined,) = [worker for worker in pool.describe() if worker.rollout_worker == 2]
        published.append(len(group.publish(2)))
        all_three = tuple(sorted(pool._hosts))
        pool.submit(requests(6))
        until(lambda: len(list(folder.glob("held-*"))) == 12)
        moved = [index for _, index in pool._places.by_number[2].groups]
        drain = ["drain-node", f"--address={cluster.address}", f"--node-id={added.node_id}"]
        drain += ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=spot"]
        ray_program = str(Path(sys.executable).with_name("ray"))
        subprocess.run(
            [ray_program, *drain, "--deadline-remaining-seconds=600"], check=True
        )
        incidents: list[Incident] = []
        until(lambda: incidents.extend(pool.take_failures()) or incidents)
        (folder / "go").touch()
        outcomes = collected(group, 6)
        published.append(len(group.publish(3)))
        incidents.extend(pool.take_failures())
        played = {o.request.group_index: o.group.trajectories for o in outcomes}
        found.put(
            {
                "added": joined.node if joined.node == added.node_id else "another",
                "joined": [tuple(sorted(before)), all_three, added.node_id],
                "published": published,
                "moved": moved,
                "attempts": {
                    index: {t.attempt for t in own} for index, own in played.items()
                },
                "resumed": {
                    index: {
                        t.info["resumed_turns"] for t in own if "resumed_turns" in t.info
                    }
                    for index, own in played.items()
                },
                "versions": {
                    v for own in played.values() for t in own for v in t.policy_versions
                },
                "before": before,
                "after": pids(),
                "incidents": [str(one) for one in incidents],
            }
        )
        group.close()
        ray.shutdown()
    finally:
        cluster.shutdown()


def test_an_answer_that_takes_long_is_logged_once(
    ray_started: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import ray

    monkeypatch.setattr("agentrl.store.logs.SLOW_S", 0.0)
    gate = ray.put(None)
    asked = ray.remote(lambda _: time.sleep(1.0)).remote(gate)
    calls = ray_runtime.ActorCalls("worker {}".format, TrainingError)
    begun = calls.begin([asked], "a nap")
    assert until(lambda: begun.look(0.05)) == [None]
    (record,) = (row for row in caplog.records if vars(row).get("event") == "slow_call")
    assert vars(record)["waiting_for"] == "worker 0"
