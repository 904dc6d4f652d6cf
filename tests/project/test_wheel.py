"""The wheel, which `pip install .` makes: every file of the package, and nothing beside it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.kit.waiting import DEADLINE_S

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "agentrl"


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files in a wheel built from a copy of the tree, links at the top included."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(PACKAGE, tree / "agentrl", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tools", "envs", "sandbox", "rollouts"):
        shutil.copy(ROOT / name, tree / name, follow_symlinks=False)
    build = "from setuptools import build_meta; print(build_meta.build_wheel('.'))"
    result = subprocess.run(
        [sys.executable, "-c", build],
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    with zipfile.ZipFile(next(tree.glob("*.whl"))) as wheel:
        return set(wheel.namelist())


def test_the_wheel_holds_every_file_of_the_package(names: set[str]) -> None:
    files = {
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and not path.name.startswith(".")
    }

    assert sorted(files - names) == []


def test_the_wheel_puts_nothing_else_in_site_packages(names: set[str]) -> None:
    tops = {name.split("/")[0] for name in names}

    assert {top for top in tops if not top.endswith(".dist-info")} == {"agentrl"}


def test_the_wheel_carries_the_licence(names: set[str]) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
