"""Text becomes an object, and says what to mend where it names none."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.types import load_object

TASK = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass
class Point:
    x: int

def make_points():
    return [Point(1)]
"""


@pytest.fixture
def task_file(tmp_path: Path) -> Path:
    path = tmp_path / "task.py"
    path.write_text(TASK)
    return path


def test_a_module_and_a_name() -> None:
    assert load_object("fractions:Fraction.from_float")(0.5) == 0.5


def test_a_relative_path_starts_from_the_base_dir(task_file: Path) -> None:
    assert load_object("task.py:make_points", task_file.parent)()[0].x == 1


def test_a_file_is_loaded_once(task_file: Path) -> None:
    assert load_object(f"{task_file}:Point") is load_object(
        "./task.py:Point", task_file.parent
    )


def test_an_object_of_a_loaded_file_can_be_pickled(task_file: Path) -> None:
    point = load_object(f"{task_file}:Point")(3)

    assert pickle.loads(pickle.dumps(point)) == point


def test_equal_stems_in_two_folders_are_two_modules(
    task_file: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other" / "task.py"
    other.parent.mkdir()
    other.write_text(TASK)

    assert load_object(f"{task_file}:Point") is not load_object(f"{other}:Point")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "math.floor",
            "'math.floor' names no object: write package.module:name or path/to/file.py:name",
        ),
        ("math://floor", "'math://floor' names no object"),
        ("math:flor", "math has no 'flor'; did you mean 'floor'?"),
        (
            "fractions:Fraction.from_flot",
            "fractions:Fraction has no 'from_flot'; did you mean 'from_float'?",
        ),
        (
            "jsn_nowhere:loads",
            "there is no module 'jsn_nowhere' (needed for 'jsn_nowhere')",
        ),
        ("concurrent.futurs:Executor", "did you mean 'futures'?"),
    ],
)
def test_a_name_that_leads_nowhere_says_what_was_near(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_object(text)

    assert message in str(caught.value)


def test_a_missing_file_names_its_neighbour(task_file: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"there is no file .*tsk\.py; did you mean 'task\.py'\?"
    ):
        load_object("tsk.py:Point", task_file.parent)


def test_a_module_that_raises_is_told_by_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("x = 1\ny = undefined_name\n")

    with pytest.raises(ConfigError, match=r"raised when imported: NameError.*broken\.py:2"):
        load_object(f"{path}:x")


def test_an_import_that_a_file_lacks_is_its_own_failure(tmp_path: Path) -> None:
    path = tmp_path / "needs.py"
    path.write_text("import not_installed_anywhere\n")

    with pytest.raises(
        ConfigError, match=r"needs\.py raised when imported: ModuleNotFoundError"
    ):
        load_object(f"{path}:x")


def test_a_file_that_was_mended_can_be_loaded_after_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "later.py"
    path.write_text("raise RuntimeError('not yet')\n")
    with pytest.raises(ConfigError):
        load_object(f"{path}:x")
    path.write_text("x = 'mended after the failure'\n")

    assert load_object(f"{path}:x") == "mended after the failure"
