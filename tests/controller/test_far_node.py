"""A node that lacks the project's folder and the model gets both; one of another agentrl is
refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest

from agentrl.errors import MachineError
from tests.kit.waiting import DEADLINE_S
from tests.run.tiny_run import CONFIG, TASK, metrics
from tests.run.tiny_task import build_model

BIN = Path(sys.executable).parent
QUIET = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}


@contextmanager
def node(command: list[str], env: Mapping[str, str]) -> Iterator[str]:
    """A node of Ray, which ends with the block; the address that it told, of a head."""
    with (
        tempfile.TemporaryDirectory(
            prefix="r"
        ) as short,  # a socket's path has at most 107 bytes
        subprocess.Popen(
            [*command[:-1], f"{command[-1]} --block --temp-dir={short}"],
            env={**os.environ, **QUIET, **env},
            stdout=subprocess.PIPE,
            text=True,
        ) as own,
    ):
        assert own.stdout is not None
        awaited = "--address='" if "--head" in command[-1] else "Ray runtime started"
        line = next((line for line in own.stdout if awaited in line), "")
        assert line
        try:
            yield line.partition(awaited)[2].partition("'")[0]
        finally:
            own.terminate()
            own.communicate(timeout=DEADLINE_S)


def head(cpus: int) -> list[str]:
    options = f"--head --port=0 --num-cpus={cpus} --include-dashboard=false"
    return ["sh", "-c", f"exec {BIN}/ray start {options}"]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a mount namespace")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare (util-linux)")
def test_a_node_without_the_projects_folder_and_the_model_plays_and_trains(
    tmp_path: Path,
) -> None:
    home, models = tmp_path / "home", tmp_path / "models"
    project = home / "project"
    for folder in (project, models / "tiny"):
        folder.mkdir(parents=True)
    build_model(models / "tiny", 0)
    text = (
        TASK.read_text() + '\nWORDS = Path(__file__).with_name("words.txt").read_text()\n'
    )
    (project / "task.py").write_text(text)
    (project / "words.txt").write_text("read beside the code")
    (project / "weights.bin").write_bytes(b"0" * 1000)
    config = CONFIG.replace(f"{TASK}:", "task.py:").replace(
        "{mode: inline}", "{rollout_workers: 1}"
    )
    config = config.replace("run: {deterministic: true}", "run: {dir: ../run}")
    (project / "config.yaml").write_text(config)
    # what the far node must not see of this machine
    hidden = f"mount -t tmpfs none {home}"
    env = {"XDG_CACHE_HOME": str(home / "cache")}
    with ExitStack() as started:
        address = started.enter_context(node(head(0), env))
        joins = f"{hidden} && exec {BIN}/ray start --address={address} --num-cpus=4"
        started.enter_context(node(["unshare", "--mount", "sh", "-c", joins], env))
        command = [f"{BIN}/agentrl", "train", str(project / "config.yaml")]
        command += [
            f"placement.ray_address={address}",
            f"model.path={(models / 'tiny').as_uri()}",
        ]
        command += ["stages.rl.steps=1", "stages.rl.eval.sets={}", "stages.warmup.steps=1"]
        command += ["stages.warmup.when=always", f"run.dir={tmp_path / 'run'}"]
        done = subprocess.run(
            command,
            env={**os.environ, **QUIET, **env},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [row for row in metrics(tmp_path / "run") if row["stage"] == "rl"]
    assert rows[-1]["count/trained_trajectories"] == 12
    # rank and worker were on the far node, which has the only CPUs
    assert len(list((home / "cache/agentrl/models").glob("*/*/config.json"))) == 1


_REFUSED = """
import sys
from pathlib import Path
from agentrl.controller.cluster import ray_cluster
from agentrl.errors import MachineError
ray_cluster.START_S = float(sys.argv[2])
try:
    ray_cluster.start_ray(0, sys.argv[1], project=Path("."))
except MachineError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_node_of_another_agentrl_is_refused(tmp_path: Path) -> None:
    other, here = tmp_path / "other" / "agentrl-99.0.dist-info", tmp_path / "here"
    other.mkdir(parents=True)
    here.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: agentrl\nVersion: 99.0\n")
    with node(head(1), {"PYTHONPATH": str(other.parent)}) as address:
        told, late = (
            subprocess.run(
                [sys.executable, "-c", _REFUSED, address, seconds],
                env={**os.environ, **QUIET},
                # Ray adds it to the path of its processes, and a checkout tells agentrl's version.
                cwd=here,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=DEADLINE_S,
            ).stdout
            for seconds in ("120", "0")
        )
    assert told.startswith(
        f"every machine of the cluster needs agentrl {version('agentrl')}, as this one has, got "
        "99.0 on "
    ), told
    assert late.startswith("the machines "), late
    assert f" of the cluster at {address} started no process within 0 s" in late


def test_a_project_that_is_too_large_to_be_sent_is_named(tmp_path: Path) -> None:
    from agentrl.controller.cluster.ray_cluster import _check_size

    def write(name: str, mebibytes: int) -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        with (tmp_path / name).open("wb") as file:
            file.truncate(mebibytes * 2**20)

    for left in ("model.safetensors", "train.parquet", "runs/a.log", "ignored/big.json"):
        write(left, 200)
    write("tables.json", 60)
    (tmp_path / ".gitignore").write_text("ignored/\n")
    _check_size(tmp_path)
    write("index.db", 50)
    with pytest.raises(
        MachineError,
        match=r"the project's folder .* must have at most 100 MiB, .* got 110 MiB, the most of it "
        r"in tables\.json, index\.db, .*; name what is no code in its \.gitignore",
    ):
        _check_size(tmp_path)
