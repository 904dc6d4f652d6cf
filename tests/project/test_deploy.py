"""The files of deploy/ are well formed, and name settings and versions that are so."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from agentrl.config.sections import PlacementConfig, RunSection

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.mark.parametrize("name", ["slurm.sh", "rayjob.yaml"])
def test_the_settings_of_a_started_run_are_of_the_configuration(name: str) -> None:
    text = (DEPLOY / name).read_text(encoding="utf-8")
    assert (
        set(re.findall(r"\brun\.([a-z_]+)=", text))
        == {"dir"}
        < RunSection.model_fields.keys()
    )
    placed = set(re.findall(r"\bplacement\.([a-z_]+)=", text))
    assert placed == {"ray_address", "wait_s"} < PlacementConfig.model_fields.keys()


def test_the_script_for_slurm_can_be_read() -> None:
    subprocess.run(["bash", "-n", str(DEPLOY / "slurm.sh")], check=True)


def test_the_manifest_gives_every_machine_the_project_and_the_pinned_ray() -> None:
    job = YAML(typ="safe").load(DEPLOY / "rayjob.yaml")
    cluster = job["spec"]["rayClusterSpec"]
    constraints = (DEPLOY.parent / "constraints-cpu.txt").read_text(encoding="utf-8")
    assert f"ray=={cluster['rayVersion']}\n" in constraints
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    mounts = [
        group["template"]["spec"]["containers"][0]["volumeMounts"] for group in groups
    ]
    assert all({"name": "project", "mountPath": "/project"} in each for each in mounts)


def test_the_image_has_the_pinned_ray_with_the_dashboard_that_takes_jobs() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert (
        "RUN pip install --no-cache-dir -c constraints-cpu.txt . 'ray[default]'\n" in text
    )
    assert re.search(r"apt-get install .*\bwget\b", text)  # of KubeRay's probes


@pytest.mark.parametrize("name", ["slurm.sh", "rayjob.yaml"])
def test_a_run_goes_on_where_there_is_one(name: str) -> None:
    text = (DEPLOY / name).read_text(encoding="utf-8")
    assert re.search(r'(test|\[) -f "?\$run/run\.json"? ', text)


def test_what_the_image_copies_is_there() -> None:
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [
        word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]
    ]
    assert "agentrl" in copied
    assert not [name for name in copied if not (DEPLOY.parent / name).exists()]
