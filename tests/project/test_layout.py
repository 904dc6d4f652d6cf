"""The layout: links, names, pins, and the ban on bare imports."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from agentrl.algorithms import ALGORITHMS
from agentrl.types.user_code.load import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "agentrl"
ROLES = {"reward_model"}  # a role bears the name too
TRACKERS = "tests/metrics/tracker_requirements.txt"
LINKS = ("tools", "envs", "sandbox", "rollouts")
EMPTY_WORDS = {"utils", "util", "common", "helpers", "helper", "misc"}


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
        command,
        cwd=ROOT,
        input=f"import {name}\n",
        capture_output=True,
        text=True,
        check=False,
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


def test_no_file_has_an_empty_name() -> None:
    paths = [
        path.relative_to(ROOT)
        for path in PACKAGE.rglob("*")
        if "__pycache__" not in path.parts
    ]

    assert [
        str(path)
        for path in paths
        if EMPTY_WORDS & set(path.name.removesuffix(path.suffix).split("_"))
    ] == []


def algorithm_comparisons(tree: ast.Module) -> Iterator[int]:
    """The lines that compare an algorithm's name: ``name`` of an algorithm, or text that names one.

    Text counts where it is a name in the catalogue of algorithms, unless a role bears the same
    name.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            parts: list[ast.expr] = [node.left, *node.comparators]
            line = node.lineno
        elif isinstance(node, ast.Match):
            patterns = [part for case in node.cases for part in ast.walk(case.pattern)]
            values = [part.value for part in patterns if isinstance(part, ast.MatchValue)]
            parts, line = [node.subject, *values], node.lineno
        else:
            continue
        if any(names_an_algorithm(leaf) for part in parts for leaf in ast.walk(part)):
            yield line


def names_an_algorithm(leaf: ast.AST) -> bool:
    if isinstance(leaf, ast.Constant):
        return isinstance(leaf.value, str) and leaf.value in ALGORITHMS.keys() - ROLES
    return (
        isinstance(leaf, ast.Attribute)
        and leaf.attr == "name"
        and ast.unparse(leaf.value).endswith("algorithm")
    )


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
        "name in ('grpo', 'x')",
        "'sft' != kind",
        "stage.algorithm.name == 'reward_model'",
        "match x:\n    case 'grpo':\n        pass",
        "match spec.algorithm.name:\n    case 'mine':\n        pass",
    ],
)
def test_a_comparison_with_an_algorithm_is_seen(source: str) -> None:
    assert len(list(algorithm_comparisons(ast.parse(source)))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "default = 'grpo'; label = f'algorithm.name={x == 1}'",
        "argv[0] == 'rm'",
        "role == 'reward_model'",
    ],
)
def test_other_uses_of_the_name_are_free(source: str) -> None:
    assert list(algorithm_comparisons(ast.parse(source))) == []


def pins(file: str = "constraints-cpu.txt") -> dict[str, str]:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
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
    """The top-level packages that the modules under ``folder`` import, apart from Python's own and
    agentrl.
    """
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
    declared.add("mlflow")  # brought by mlflow-skinny
    declared.add("vllm")  # of the modules that a vLLM server loads in its own environment

    undeclared = {
        name
        for name in external_imports(PACKAGE)
        if not {canonicalize_name(found) for found in distributions.get(name, [name])}
        & declared
    }
    assert undeclared == set()


def test_the_pins_meet_the_floors_of_the_package() -> None:
    requirements = [
        Requirement(text) for text in importlib.metadata.requires("agentrl") or []
    ]
    pinned = pins("tests/controller/s3_requirements.txt") | pins(TRACKERS) | pins()

    unmet = [
        str(item)
        for item in requirements
        if pinned[canonicalize_name(item.name)] not in item.specifier
    ]
    assert unmet == []


S3 = "tests/controller/s3_requirements.txt"


@pytest.mark.parametrize(("file", "others"), [(S3, set()), (TRACKERS, {"pillow"})])
def test_pins_beside_the_environment_are_solved_with_its_own(
    file: str, others: set[str]
) -> None:
    mine, theirs = pins(), pins(file)

    assert {
        name for name in mine.keys() & theirs.keys() if mine[name] != theirs[name]
    } == others


def test_messages_name_the_packages_of_the_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    extras = {name: tuple(own) for name, own in project["optional-dependencies"].items()}
    del extras["test"]

    assert extras == PACKAGES


def test_nothing_tells_to_install_this_package_by_name() -> None:
    # on the public registry the name is another project's
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    told = [
        name
        for name in tracked
        if name.endswith((".py", ".md", ".yaml", ".toml", ".txt", "Makefile"))
        and name not in ("CHANGELOG.md", "tests/project/test_layout.py")
        and re.search(
            r"agentrl\[|pip install '?agentrl(?![\w-])",
            (ROOT / name).read_text(encoding="utf-8"),
        )
    ]
    assert told == []


def test_what_only_ends_a_hang_is_one_deadline() -> None:
    """A busy machine reaches a shorter one, and fails a test that holds nothing about time."""
    number = r"\d{2,3}(?:\.0)?\)"
    short = re.compile(
        rf"asyncio\.timeout\({number}|wait_for\(.*, {number}|collect_groups\(.*\], {number}|"
        rf"\.(?:join|collect|wait)\({number}|^DEADLINE_S = |\btimeout=\d{{2,3}}\b|"
        r"within_s=\d{2,3}\b|mark\.timeout|^(?:START|END|WAIT|WARM_UP)_S = \d"
    )
    kit = ROOT / "tests" / "kit" / "waiting.py"
    found = [
        f"{path.relative_to(ROOT)}:{at}: {line.strip()}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path not in (kit, Path(__file__))
        for at, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if short.search(line)
    ]
    assert found == []
