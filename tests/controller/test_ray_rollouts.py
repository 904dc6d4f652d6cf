"""Rollout workers apart from the ranks that train: weights reach them, episodes come back, deaths are named."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.controller.fleet import collect_groups
from agentrl.errors import AgentRLError, EngineError
from agentrl.rollouts import GroupRequest
from tests.controller.tiny import TASKS, worker_spec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def group(ray_started: None, model: Path) -> Iterator[Any]:
    from agentrl.controller.ray_group import RayGroup
    from agentrl.controller.ray_rollouts import RayRolloutGroup

    group = RayRolloutGroup(RayGroup(1, threads=1), 2, threads=1)
    group.setup(worker_spec(model))
    yield group
    group.close()


def test_episodes_are_played_outside_of_the_ranks_with_their_weights(group: Any) -> None:
    trainer, *workers = group.describe()
    assert trainer["rank"] == 0
    assert [worker["rollout_worker"] for worker in workers] == [0, 1]
    assert len({place["pid"] for place in (trainer, *workers)} | {os.getpid()}) == 4
    assert [report.version for report in group.publish(3)] == [3, 3]
    outcomes = collect_groups(group, [GroupRequest(draw, TASKS[draw], 2) for draw in range(4)], 120.0)
    assert [outcome.request.draw for outcome in outcomes] == [0, 1, 2, 3]
    assert {v for o in outcomes for t in o.group.trajectories for v in t.policy_versions} == {3}


def test_a_worker_that_is_killed_is_named(group: Any) -> None:
    workers = group.describe()[1:]
    os.kill(workers[1]["pid"], signal.SIGKILL)
    with pytest.raises(EngineError, match="rollout worker 1 died"):
        group.publish(1)
    with pytest.raises(AgentRLError, match="poisoned"):
        group.publish(2)


def test_workers_are_placed_on_another_node(model: Path) -> None:
    """Two Ray nodes in one machine; only the second has what the rollout workers ask for."""
    context = multiprocessing.get_context("spawn")
    found: Any = context.Queue()
    driver = context.Process(target=_over_two_nodes, args=(model, found))
    driver.start()
    try:
        nodes, here, versions = found.get(timeout=240)
    finally:
        driver.join(60)
        driver.kill()
    assert len(set(nodes)) == 1
    assert here not in nodes
    assert versions == {5}


def _over_two_nodes(model: Path, found: Any) -> None:
    import ray
    from ray.cluster_utils import Cluster

    from agentrl.controller.ray_group import RayGroup, start_ray
    from agentrl.controller.ray_rollouts import RayRolloutGroup

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    cluster.add_node(num_cpus=2, resources={"rollout": 2})
    try:
        start_ray(3, cluster.address)
        group = RayRolloutGroup(RayGroup(1, threads=1), 2, threads=1, resources={"rollout": 1})
        group.setup(worker_spec(model))
        group.publish(5)
        outcomes = collect_groups(group, [GroupRequest(draw, TASKS[draw], 2) for draw in range(2)], 120.0)
        versions = {v for o in outcomes for t in o.group.trajectories for v in t.policy_versions}
        nodes = [worker["node"] for worker in group.describe()[1:]]
        found.put((nodes, ray.get_runtime_context().get_node_id(), versions))
        group.close()
        ray.shutdown()
    finally:
        cluster.shutdown()
