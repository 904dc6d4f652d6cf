"""Builds what the oracles need beside the tests' own environment, once a machine."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.kit.waiting import DEADLINE_S

HERE = Path(__file__).parent
VERL = HERE / "requirements.txt"
PEFT = HERE / "peft_requirements.txt"

Call = tuple[str, dict[str, Any]]
Ask = Callable[[Sequence[Call]], list[dict[str, Any]]]


@pytest.fixture(scope="session")
def verl_packages() -> Path:
    """The folder of verl's packages."""
    return packages(VERL)


@pytest.fixture(scope="session")
def peft_packages() -> Path:
    """The folder of peft."""
    return packages(PEFT)


def packages(requirements: Path) -> Path:
    """A folder of packages, in the user's cache; made whole or not at all."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "agentrl"
    version = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    folder = cache / f"oracles-{version}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as place:
            made = Path(place) / "packages"
            subprocess.run(
                [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps",
                 "--disable-pip-version-check", "--target", made, "-r", requirements],
                check=True, timeout=DEADLINE_S,
            )  # fmt: skip
            try:
                made.rename(folder)
            except OSError:
                # else tests in another process have made it meanwhile
                if not folder.is_dir():
                    raise
    return folder


@pytest.fixture(scope="session")
def verl(verl_packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Calls functions of ``verl_side.py`` in a process of its own, whose imports take seconds."""
    with subprocess.Popen(
        [sys.executable, "-P", HERE / "verl_side.py"],
        env={**os.environ, "PYTHONPATH": str(verl_packages)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(calls: Sequence[Call]) -> list[dict[str, Any]]:
            assert process.stdin is not None
            assert process.stdout is not None
            place = tmp_path_factory.mktemp("verl") / "calls"
            place.write_bytes(pickle.dumps(list(calls)))
            process.stdin.write(f"{place}\n")
            process.stdin.flush()
            # verl may say things of its own; where it ends there is no such line
            told = any(line.strip() == f"answered {place}" for line in process.stdout)
            assert told, "the process of verl ended; its error is above"
            answers: list[dict[str, Any]] = pickle.loads(place.read_bytes())
            return answers

        yield ask
        process.stdin.close()
        process.wait(DEADLINE_S)
