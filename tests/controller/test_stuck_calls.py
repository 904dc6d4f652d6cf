"""A call that a rank or a rollout worker does not answer: who it is, and where it hangs."""

from __future__ import annotations

import math
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.sections import PlacementConfig, PoolConfig
from agentrl.controller.cluster.role_group import LocalRoleGroup, RoleGroup
from agentrl.errors import TrainingError
from agentrl.store.logs import StackFile, stack_in
from agentrl.training import DistSpec
from tests.controller.test_ray_rollouts import requests
from tests.controller.tiny import Cluster
from tests.kit.waiting import DEADLINE_S, gather, until


@dataclass(frozen=True)
class HungSpec:
    """Of a role whose method waits for a pipe of the file system that nobody writes to."""

    pipe: str

    def build(self, place: DistSpec) -> Hung:
        return Hung(self.pipe, place.rank)


class Hung:
    def __init__(self, pipe: str, rank: int) -> None:
        self.pipe = pipe
        self.rank = rank

    def quick(self) -> int:
        return self.rank

    def hang_in_a_pipe(self) -> int:
        if self.rank == 0:
            with open(self.pipe, encoding="ascii") as pipe:
                pipe.read()
        return self.rank


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def let_go(pipe: Path) -> None:
    pipe.open("w").close()


def begin(group: RoleGroup, method: str) -> Any:
    return group.begin("hung", method).look


@pytest.mark.slow
def test_a_rank_that_hangs_leaves_its_stack_and_one_in_time_leaves_none(
    ray_started: None,
    tmp_path: Path,
    pipe: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from agentrl.controller.cluster.ray_role_group import RayRoleGroup

    # that of the ranks, which they are given as they start
    monkeypatch.setattr("agentrl.store.logs.SLOW_S", 1.0)
    logs = tmp_path / "logs"
    group = RayRoleGroup(PoolConfig(world_size=2), log_folder=logs)
    try:
        group.setup({"hung": HungSpec(str(pipe))})
        hung = logs / "rank-0.stacks"
        assert group.call("hung", "quick") == [0, 1]
        assert (group.now(), stack_in(hung)) == ([], "")
        look = begin(group, "hang_in_a_pipe")
        until(lambda: stack_in(hung))
        assert "hang_in_a_pipe (test_stuck_calls.py:" in stack_in(hung)
        # the other rank has answered, once that was looked at
        look.__self__._slow_s = math.inf
        until(lambda: look(0.01) or len(look.__self__.late) == 1)
        (told,) = group.now()
        assert told["call"] == "hung.hang_in_a_pipe"
        assert told["waits_for"].startswith("the worker of rank 0; it is in ")
        look.__self__._slow_s = 0.0
        assert look(0.01) is None
        # the setup may have been slow too
        records = [row for row in caplog.records if vars(row).get("event") == "slow_call"]
        (record,) = (row for row in records if vars(row)["call"] == told["call"])
        assert " yet; it is in " in record.getMessage()
        assert record.getMessage().endswith(f" ({hung})")
        group._calls.timeout_s = 0.0
        with pytest.raises(TrainingError, match="did not answer within 0 s") as caught:
            look(0.01)
        assert "hang_in_a_pipe (test_stuck_calls.py:" in str(caught.value)
        let_go(pipe)
    finally:
        group.close()


def test_a_rank_in_the_driver_leaves_the_drivers_stack(tmp_path: Path, pipe: Path) -> None:
    path = tmp_path / "driver.stacks"
    group = LocalRoleGroup(threads=1, stacks=StackFile(path, after_s=0.05))
    group.setup({"hung": HungSpec(str(pipe))})
    assert group.call("hung", "quick") == [0]
    calling = threading.Thread(target=group.call, args=("hung", "hang_in_a_pipe"))
    calling.start()
    until(lambda: "hang_in_a_pipe (" in stack_in(path))
    let_go(pipe)
    calling.join(DEADLINE_S)
    group.close()


@pytest.mark.slow
def test_a_rollout_worker_that_stands_still_is_named(
    ray_started: None, model: Path
) -> None:
    from agentrl.controller.cluster.ray_role_group import RayRoleGroup
    from agentrl.controller.cluster.ray_rollout_pool import rollout_workers
    from agentrl.controller.cluster.weight_publisher import ServedSync

    placement = PlacementConfig(rollout_workers=2, worker_liveness_timeout_s=20)
    cluster = Cluster(RayRoleGroup(placement), rollout_workers(placement), ServedSync())
    try:
        cluster.setup(model)
        cluster.publish(1)
        assert (cluster.sync.published["version"], cluster.sync.published["engines"]) == (
            1,
            2,
        )
        rows = cluster.pool.now()["workers"]
        assert [(one["worker"], one["state"], one["version"]) for one in rows] == [
            (0, "serving", 1),
            (1, "serving", 1),
        ]
        until(lambda: all(one["gib"] for one in cluster.pool.now()["workers"]))
        still = next(one.pid for one in cluster.pool.describe() if one.rollout_worker == 1)
        os.kill(still, signal.SIGSTOP)
        try:
            until(lambda: cluster.pool.now()["workers"][1]["state"] == "suspect")
            one, other = cluster.pool.now()["workers"]
            assert one["state"] == "serving"
            assert other["told_s"] > one["told_s"]
            assert other["gib"] > 0
        finally:
            os.kill(still, signal.SIGCONT)
        until(lambda: cluster.pool.now()["workers"][1]["state"] == "serving")
        cluster.pool.submit(requests(2))
        assert sum(one["groups"] for one in cluster.pool.now()["workers"]) > 0
        gather(cluster.pool.collect, 2)
        assert sum(one["groups"] for one in cluster.pool.now()["workers"]) == 0
    finally:
        cluster.close()


def test_ray_knows_which_calls_run_beside_training() -> None:
    """Ray reads what ``ray.method`` says of a function from below what wraps it; where it finds
    nothing, each pass of a rank waits for the poll before it to end."""
    from agentrl.controller.cluster.ray_runtime import rank_actor, rollout_actor

    for actor in (rank_actor, rollout_actor):
        told = actor.__ray_metadata__
        methods = vars(told.modified_class.__mro__[1]) | vars(
            told.modified_class.__mro__[2]
        )
        said = {
            name: method.__ray_concurrency_group__
            for name, method in methods.items()
            if hasattr(method, "__ray_concurrency_group__")
        }
        assert told.method_meta.concurrency_group_for_methods == said
        assert said["poll"] == said["episodes"] == "episodes"
