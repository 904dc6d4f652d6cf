"""An installation says what it brings and how far it is: a real pip, and a package index of this
machine.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.run.install import pip_install as module
from agentrl.run.install.pip_install import Progress, pip_install
from tests.kit.http import Files, serving

SCRIPT = Path(module.__file__)


def make_wheel(folder: Path, name: str, *, requires: str = "", num_bytes: int = 0) -> None:
    """A package with one module and so many bytes that do not compress."""
    page = folder / "simple" / name
    page.mkdir(parents=True)
    file = f"{name}-1.2-py3-none-any.whl"
    (page / "index.html").write_text(f'<a href="{file}">{file}</a>')
    info = f"{name}-1.2.dist-info"
    needed = f"Requires-Dist: {requires}\n" if requires else ""
    with zipfile.ZipFile(page / file, "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{name}.bin", os.urandom(num_bytes))
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n{needed}"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("index")
    make_wheel(folder, "largeone", requires="smallone", num_bytes=12_000_000)
    make_wheel(folder, "smallone")
    with serving(functools.partial(Files, directory=str(folder))) as url:
        yield f"{url}/simple"


def arguments(index: str, target: Path, package: str) -> list[str]:
    return ["--isolated", "--no-cache-dir", "--index-url", index, "--target", str(target), package]


def test_an_installation_names_large_files_with_their_sizes(index: str, tmp_path: Path) -> None:
    told: list[str] = []
    pip_install(arguments(index, tmp_path, "largeone"), tell=told.append)

    assert (tmp_path / "smallone.py").exists()
    large, packages, done = told
    assert large == "downloading largeone 1.2, 12.0 MB"
    assert packages == "installing 2 packages, 12.0 MB of files"
    assert done.startswith("installed in ")


def test_what_pip_said_last_is_kept_for_whoever_must_mend_it(index: str, tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failure:
        pip_install(arguments(index, tmp_path, "absent"), tell=lambda _: None)
    assert "No matching distribution found for absent" in failure.value.output


def test_the_script_ends_as_pip_does_and_shows_why(index: str, tmp_path: Path) -> None:
    command = [sys.executable, "-P", str(SCRIPT), *arguments(index, tmp_path, "absent")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert "No matching distribution found for absent" in done.stderr


def test_the_line_says_how_much_of_a_file_is_here(tmp_path: Path) -> None:
    progress = Progress(tmp_path, tmp_path)
    assert progress.hear("Collecting torch==2.13") is None
    assert progress.line() == "looking for what is needed: 1 packages so far"
    progress.hear("  Downloading torch-2.13.0-cp311-linux.whl.metadata (29 kB)")
    assert progress.line().startswith("looking")
    assert (
        progress.hear("Downloading torch-2.13.0-cp311-linux.whl (888.1 MB)")
        == "downloading torch 2.13.0, 888.1 MB"
    )
    (tmp_path / "unpack").mkdir()
    (tmp_path / "unpack" / "torch-2.13.0-cp311-linux.whl").write_bytes(bytes(3_000_000))
    assert progress.line() == "torch 2.13.0, 3.0 MB of 888.1 MB; 1 files, 888.1 MB in all"
    assert (
        progress.hear("Installing collected packages: torch, numpy")
        == "installing 2 packages, 888.1 MB of files"
    )
    assert progress.line() == "installing 2 packages: 0 done"


def test_packages_are_counted_while_they_are_installed(tmp_path: Path) -> None:
    (tmp_path / "pip-25.dist-info").mkdir()
    progress = Progress(tmp_path, tmp_path)
    progress.hear("Installing collected packages: torch, numpy")
    (tmp_path / "numpy-2.dist-info").mkdir()
    assert progress.line() == "installing 2 packages: 1 done"


def test_small_files_are_counted_and_not_named(tmp_path: Path) -> None:
    progress = Progress(tmp_path, tmp_path)
    assert progress.hear("Downloading idna-3.10-py3-none-any.whl (70 kB)") is None
    assert (
        progress.hear("Using cached ray-2.6-cp311-linux.whl (70.2 MB)")
        == "using cached ray 2.6, 70.2 MB"
    )
    assert progress.line() == "ray 2.6; 2 files, 70.3 MB in all"
