"""A whole run while a node joins its cluster and is drained later: nothing is lost, and the ledger
balances.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.store import read_jsonl
from tests.kit.forks import agentrl, finish
from tests.kit.waiting import until
from tests.run.test_async_run import AHEAD, ALWAYS
from tests.run.tiny_run import metrics, states

pytestmark = pytest.mark.slow

RAY = (
    "placement.mode=ray",
    "placement.rollout_workers=[1, 2]",
    "placement.worker_resources={rollout: 1}",
    "rollout.schedule=async",
    "stages.warmup.steps=2",
)


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head and a node: room for a rank and for one worker."""
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    try:
        made.add_node(num_cpus=2, resources={"rollout": 1})
        yield made
    finally:
        made.shutdown()


def test_a_run_goes_on_through_a_join_and_a_drain(cluster: Any, tmp_path: Path) -> None:
    config, log, run_dir = (tmp_path / name for name in ("config.yaml", "told.txt", "run"))
    config.write_text(AHEAD, encoding="utf-8")
    given = (
        config,
        f"run.dir={run_dir}",
        *ALWAYS,
        *RAY,
        f"placement.ray_address={cluster.address}",
    )
    driver = agentrl(("train", *given, "stages.rl.steps=4000"), log)

    def trained(number: int) -> Any:
        """So many steps more."""
        wanted = len(metrics(run_dir)) + number
        told = log.read_text
        until(lambda: len(metrics(run_dir)) >= wanted or not driver.is_alive(), told)
        assert driver.is_alive(), told()

    def of_worker_1(event: str) -> bool:
        rows = read_jsonl(run_dir / "logs" / "driver.jsonl")
        return any(row.get("event") == event and row.get("worker") == 1 for row in rows)

    try:
        trained(3)
        added = cluster.add_node(num_cpus=1, resources={"rollout": 1})
        until(lambda: of_worker_1("worker_joined"), log.read_text)
        trained(3)
        drain = ["drain-node", f"--address={cluster.address}", f"--node-id={added.node_id}"]
        drain += ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=spot"]
        subprocess.run([str(Path(sys.executable).with_name("ray")), *drain], check=True)
        until(lambda: of_worker_1("worker_left"), log.read_text)
        trained(3)
        assert driver.pid is not None
        os.kill(driver.pid, signal.SIGTERM)
    finally:
        if driver.is_alive() and sys.exc_info()[0] is not None:
            driver.kill()
        finish(driver, 143)
    # two more take all that was issued ahead, since staleness is at most 1
    steps = max(row["step"] for row in metrics(run_dir)) + 2
    finish(agentrl(("train", *given, f"stages.rl.steps={steps}", "--resume"), log))
    rows = [row for row in metrics(run_dir) if row["stage"] == "rl"]
    assert [row["step"] for row in rows] == [*range(1, int(steps) + 1)]
    assert sum(row.get("count/drained_workers", 0) for row in rows) == 1
    assert sum(row.get("count/lost_workers", 0) for row in rows) == 0
    assert {row["async/dropped"] for row in rows} == {0.0}
    counts = states(run_dir)
    assert counts["trained"] == steps * 3 * 4
    # beside them only what the resume took back
    assert counts.keys() <= {"trained", "rolled_back"}
