"""The layout: links, names, pins, and the ban on bare imports."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "agentrl"
LINKS = ("tools", "envs", "sandbox", "rollouts")
EMPTY_WORDS = {"utils", "util", "common", "helpers", "helper", "misc"}
EMPTY_SUFFIXES = ("Manager", "Handler")

# Names of algorithms: only agentrl/algorithms may decide anything by them.
ALGORITHM_NAMES = {
    "sft", "rm", "grpo", "dr_grpo", "dapo", "gspo", "cispo", "ppo", "vapo", "rloo", "opo", "remax", "gigpo", "gpg",
    "reinforce", "reinforce++", "reinforce_plus_plus", "reinforce_baseline", "dpo",
}  # fmt: skip


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@pytest.mark.parametrize("name", LINKS)
def test_link_at_the_top_is_relative_and_points_into_the_package(name: str) -> None:
    assert os.readlink(ROOT / name) == f"agentrl/{name}"
    assert (ROOT / name).resolve() == PACKAGE / name


@pytest.mark.parametrize("name", LINKS)
def test_the_linter_refuses_a_bare_import_of_a_link(name: str) -> None:
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--select",
        "TID251",
        "--stdin-filename",
        "tests/sample.py",
        "-",
    ]
    result = subprocess.run(
        command, cwd=ROOT, input=f"import {name}\n", capture_output=True, text=True, check=False
    )

    assert result.returncode == 1
    assert f"import agentrl.{name}" in result.stdout


@pytest.mark.parametrize("name", LINKS)
def test_the_linter_reads_the_folders_that_the_links_name(name: str) -> None:
    command = [sys.executable, "-m", "ruff", "check", "--show-files"]
    files = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()

    assert str(PACKAGE / name / "__init__.py") in files
    assert str(ROOT / name / "__init__.py") not in files


def test_no_name_says_nothing() -> None:
    paths = [
        path.relative_to(ROOT) for path in PACKAGE.rglob("*") if "__pycache__" not in path.parts
    ]
    empty = [
        str(path)
        for path in paths
        if EMPTY_WORDS & set(path.name.removesuffix(path.suffix).split("_"))
    ]
    empty += [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in modules()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef) and node.name.endswith(EMPTY_SUFFIXES)
    ]

    assert empty == []


def algorithm_comparisons(tree: ast.Module) -> Iterator[int]:
    """The lines on which a value is compared with, or matched against, the name of an algorithm."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            parts: list[ast.expr] = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        else:
            continue
        constants = [
            leaf.value
            for part in parts
            for leaf in ast.walk(part)
            if isinstance(leaf, ast.Constant)
        ]
        if any(isinstance(constant, str) and constant in ALGORITHM_NAMES for constant in constants):
            yield node.lineno if isinstance(node, ast.Compare) else node.value.lineno


def test_only_algorithms_compare_the_name_of_an_algorithm() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in modules()
        if PACKAGE / "algorithms" not in path.parents
        for line in algorithm_comparisons(parse(path))
    ]

    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "a.name == 'grpo'",
        "name in ('ppo', 'x')",
        "'sft' != kind",
        "match x:\n    case 'grpo':\n        pass",
    ],
)
def test_a_comparison_with_an_algorithm_is_seen(source: str) -> None:
    assert len(list(algorithm_comparisons(ast.parse(source)))) == 1


def test_other_uses_of_the_name_are_free() -> None:
    assert (
        list(
            algorithm_comparisons(ast.parse("default = 'grpo'; label = f'algorithm.name={x == 1}'"))
        )
        == []
    )


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints-cpu.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_torch_is_pinned_without_a_local_suffix() -> None:
    # "2.13.0" is met by 2.13.0+cpu too; "2.13.0+cpu" is met by one index only
    assert "+" not in pins()["torch"]


def test_every_package_that_agentrl_needs_is_pinned() -> None:
    needed: set[tuple[str, frozenset[str]]] = set()

    def walk(name: str, extras: frozenset[str]) -> None:
        if (name, extras) in needed:
            return
        needed.add((name, extras))
        for text in importlib.metadata.requires(name) or []:
            requirement = Requirement(text)
            if requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)
            ):
                walk(canonicalize_name(requirement.name), frozenset(requirement.extras))

    walk("agentrl", frozenset({"test", "tensorboard"}))

    # The wheels that torch brings for a GPU are pinned by torch itself.
    gpu_only = ("nvidia-", "cuda-", "triton")
    assert {name for name, _ in needed if not name.startswith(gpu_only)} - {
        "agentrl"
    } - pins().keys() == set()


def external_imports(folder: Path) -> set[str]:
    """The top-level packages that the modules under ``folder`` import, apart from Python's own and agentrl."""
    found = set()
    for path in (path for path in folder.rglob("*.py") if "__pycache__" not in path.parts):
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - {"agentrl"}


def test_every_import_of_the_package_is_a_declared_dependency() -> None:
    declared = {
        canonicalize_name(Requirement(text).name)
        for text in importlib.metadata.requires("agentrl") or []
    }
    distributions = importlib.metadata.packages_distributions()
    declared.add("pydantic-core")  # pydantic's own half, whose version pydantic pins

    undeclared = {
        name
        for name in external_imports(PACKAGE)
        if not {canonicalize_name(found) for found in distributions.get(name, [name])} & declared
    }
    assert undeclared == set()


def test_the_pins_meet_the_floors_of_the_package() -> None:
    requirements = [Requirement(text) for text in importlib.metadata.requires("agentrl") or []]

    unmet = [
        str(item)
        for item in requirements
        if pins()[canonicalize_name(item.name)] not in item.specifier
    ]
    assert unmet == []
