"""A far node whose link is cut: two nodes of Ray on one machine, each in a network namespace."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.far_node import ADDRESS, FAR, NEAR, ray_node, run, two_namespaces
from tests.kit.waiting import DEADLINE_S, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for network namespaces"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="needs ip (iproute2)"),
]


def test_a_far_node_whose_link_is_cut_is_one_loss_and_comes_back(
    model: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # a socket's path is short, so that Ray's folders are too
    short = Path("/tmp") / f"lost-{os.getpid()}"
    short.mkdir()
    told = tmp_path_factory.mktemp("told") / "told.json"
    name = f"agentrl{os.getpid()}"
    try:
        with (
            two_namespaces(name) as (near, far),
            ray_node(
                near,
                short / "near",
                NEAR,
                "--head",
                "--num-cpus=3",
                "--include-dashboard=false",
                '--resources={"rollout": 1}',
            ),
            ray_node(far, short / "far", FAR, "--num-cpus=2", '--resources={"rollout": 2}'),
        ):
            subprocess.run(
                [
                    "ip",
                    "netns",
                    "exec",
                    near,
                    sys.executable,
                    __file__,
                    str(model),
                    str(told),
                ],
                check=True,
                timeout=DEADLINE_S,
                env={**os.environ, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": os.getcwd()},
            )
    finally:
        shutil.rmtree(short, ignore_errors=True)
    found = json.loads(told.read_text())
    assert found["lost"]["count/lost_nodes"] == 1
    assert found["lost"]["count/lost_workers"] == 2
    # a lost node is told within its workers' time to answer, and some of its own
    assert found["lost_after_s"] < 20 + 5 + 10
    assert found["events"].count("worker_lost") == 0
    assert found["events"].count("node_back") == 1
    assert found["played_meanwhile"] == 4
    assert found["near_before"] == found["near_after"]
    assert found["serving_after"] == 3


def _drive(model: Path, told: Path) -> None:
    import ray

    from agentrl.controller.cluster.ray_cluster import start_ray
    from tests.controller.test_ray_rollouts import collected, requests, workers

    def nodes() -> int:
        return sum(one["Alive"] for one in ray.nodes())

    def link(state: str) -> None:
        run("ip", "link", "set", "near", state)

    start_ray(3, ADDRESS)
    until(lambda: nodes() == 2)
    group = workers(
        3,
        worker_resources={"rollout": 1},
        worker_liveness_timeout_s=20.0,
        worker_restarts=1,
    )
    incidents: list[Any] = []

    def event(name: str) -> Callable[[], Any]:
        def look() -> Any:
            incidents.extend(group.pool.take_failures())
            return next((one for one in incidents if one.event == name), None)

        return look

    group.setup(model)
    group.publish(1)
    here = ray.get_runtime_context().get_node_id()
    near = [worker.pid for worker in group.pool.describe() if worker.node == here]
    link("down")
    cut = time.monotonic()
    group.pool.submit(requests(4))
    lost = until(event("node_lost"))
    lost_after_s = time.monotonic() - cut
    played = collected(group, 4)
    group.publish(2)
    link("up")
    until(event("node_back"))
    until(lambda: len(group.pool._places.serving) == 3)
    event("")()
    after = [worker.pid for worker in group.pool.describe() if worker.node == here]
    told.write_text(
        json.dumps(
            {
                "lost": dict(lost.counts),
                "lost_after_s": lost_after_s,
                "played_meanwhile": len(played),
                "events": [one.event for one in incidents],
                "near_before": near,
                "near_after": after,
                "serving_after": len(group.publish(3)),
            }
        )
    )
    group.close()
    ray.shutdown()


if __name__ == "__main__":
    _drive(Path(sys.argv[1]), Path(sys.argv[2]))
