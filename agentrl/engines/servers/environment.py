"""Server environment: the Python environment that a server's program runs in, built by pip beside
agentrl's own, and proved to load the program.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.errors import ConfigError, MachineError

_STEP_S = 3600.0
_PROOF_S = 600.0
_SHOWN_LINES = 15
_STAND_INS = Path(__file__).parent / "stand_ins"
_VISION_OPS: Mapping[str, Path] = {
    "agentrl_vision_ops.py": _STAND_INS / "vision_ops.py",
    "agentrl_vision_ops.pth": _STAND_INS / "vision_ops.txt",
}
"""Stand-ins with which torchvision's wheel loads beside the CPU build of torch."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an environment is made of.

    Args:
        name: ``cpu`` or ``gpu``.
        steps: arguments of ``pip install``, one call each, in order.
        torch_index: an index that has this recipe's build of torch beside pip's own ones; None
            needs none.
        stand_ins: files of ours, by their places among the environment's packages, for what a
            machine without a GPU cannot load.
    """

    name: str
    steps: tuple[tuple[str, ...], ...]
    torch_index: str | None = None
    stand_ins: Mapping[str, Path] = field(default_factory=dict)

    @classmethod
    def on_cpu(cls, folder: Path, stand_ins: Mapping[str, Path]) -> Recipe:
        """The CPU build of torch, and the program without its CUDA packages. Linux, x86-64.

        Args:
            folder: with ``server.txt``, installed without dependencies, and ``dependencies.txt``.
            stand_ins: beside those of torchvision's operators.
        """
        return cls(
            "cpu",
            (
                ("torch==2.13.0",),
                ("--no-deps", "-r", str(folder / "server.txt")),
                ("-r", str(folder / "dependencies.txt")),
            ),
            torch_index="https://download.pytorch.org/whl/cpu",
            stand_ins={**stand_ins, **_VISION_OPS},
        )


@dataclass(frozen=True, slots=True)
class ServerEnvironment:
    """An engine's environment.

    Args:
        engine: the engine's section, which the command line names it by.
        product: the program's name, for messages.
        version: of the program.
        least: the oldest version that agentrl speaks to.
        proof: arguments with which the interpreter loads the program and ends.
        recipes: the one that is used first where several are built, first.
    """

    engine: str
    product: str
    version: str
    least: tuple[int, int, int]
    proof: tuple[str, ...]
    recipes: tuple[Recipe, ...]

    def require(self, version: object, server: str) -> tuple[int, ...]:
        """A server's version as numbers.

        Raises:
            MachineError: it is below the least one, or none.
        """
        found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", str(version))
        numbers = tuple(int(part or 0) for part in found.groups()) if found else ()
        if numbers < self.least:
            raise MachineError(
                f"{server} is {self.product} {version}; agentrl needs at least "
                f"{'.'.join(map(str, self.least))}: install a newer one (`agentrl install "
                f"{self.engine}`) and name its interpreter in python of the engine's section"
            )
        return numbers

    def recipe(self, name: str) -> Recipe:
        """The recipe of a name."""
        return next(recipe for recipe in self.recipes if recipe.name == name)

    def folder(self, recipe: Recipe) -> Path:
        """Where it lies unless someone says otherwise: below the user's data folder
        (``XDG_DATA_HOME``, by default ``~/.local/share``)."""
        data = Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser()
        return data / "agentrl" / f"{self.engine}-{self.version}-{recipe.name}"

    def python(self) -> Path:
        """The interpreter at the first default place that has one, or that the last would have."""
        pythons = [interpreter(self.folder(recipe)) for recipe in self.recipes]
        return next((python for python in pythons if python.exists()), pythons[-1])

    def installed(self) -> list[str]:
        """A line for each environment at its default place, the one that is used first."""
        lines = []
        for folder in map(self.folder, self.recipes):
            if found := _read(self._mark(folder)):
                ready = found.get("complete") is True and interpreter(folder).exists()
                state = f", not finished: `agentrl install {self.engine}` goes on with it"
                made = f"{found.get(self.engine)} for {found.get('recipe')} in {folder}"
                lines.append(made if ready else made + state)
        return lines

    def build(
        self,
        folder: Path,
        recipe: Recipe,
        *,
        torch_index: str | None,
        tell: Callable[[str], None],
    ) -> tuple[Path, bool]:
        """Makes the environment in ``folder``, or finds it made already and renews what is ours in
        it. A build that was broken off goes on.

        Args:
            folder: new, empty, or an earlier build's.
            recipe: what goes in.
            torch_index: instead of the recipe's own.
            tell: told of each step.

        Returns:
            Its interpreter, and whether it was made now.

        Raises:
            ConfigError: the folder holds something else.
            MachineError: pip failed, or the server cannot be loaded afterwards.
        """
        mark = self._mark(folder)
        python = interpreter(folder)
        record = {self.engine: self.version, "recipe": recipe.name, "complete": True}
        found = _read(mark)
        if found == record and python.exists():
            # those of an earlier version of ours may lack something
            _place(recipe.stand_ins, python)
            return python, False
        if found is None and folder.exists() and any(folder.iterdir()):
            raise ConfigError(
                f"--dir={folder} must be a new or empty folder, and it holds other files; name "
                "another"
            )
        if found is not None and {**found, "complete": True} != record:
            raise ConfigError(
                f"--dir={folder} holds an environment of {self.product} {found.get(self.engine)} "
                f"for {found.get('recipe')}, {self.version} for {recipe.name} was asked for; name "
                "another folder, or delete that one"
            )
        folder.mkdir(parents=True, exist_ok=True)
        mark.write_text(json.dumps({**record, "complete": False}), encoding="utf-8")
        tell(
            f"making {folder} with Python {sys.version_info.major}.{sys.version_info.minor}"
        )
        venv.create(folder, with_pip=True)
        index = torch_index or recipe.torch_index
        for number, step in enumerate(recipe.steps, 1):
            what = Path(step[-1]).name
            tell(f"step {number} of {len(recipe.steps)}: {what}")
            extra = (
                ["--extra-index-url", index] if index and what.startswith("torch==") else []
            )
            words = [
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                *extra,
            ]
            _run(python, [*words, *step], _STEP_S, f"pip install {what}")
        _place(recipe.stand_ins, python)
        tell("loading the server, to see that it can be")
        _run(python, self.proof, _PROOF_S, "loading the server")
        mark.write_text(json.dumps(record), encoding="utf-8")
        return python, True

    def _mark(self, folder: Path) -> Path:
        return folder / f"agentrl-{self.engine}.json"


def interpreter(folder: Path) -> Path:
    """The interpreter of the environment in a folder."""
    return folder / "bin" / "python"


def _place(files: Mapping[str, Path], python: Path) -> None:
    if not files:
        return
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = _run(
        python, ["-c", code], _PROOF_S, "finding the environment's packages"
    ).strip()
    for target, source in files.items():
        place = Path(packages, target)
        place.parent.mkdir(exist_ok=True)
        shutil.copyfile(source, place)


def _run(python: Path, arguments: Sequence[str], seconds: float, what: str) -> str:
    # They would lead the environment's interpreter to this one's packages.
    own = ("PYTHONPATH", "PYTHONHOME")
    try:
        return subprocess.run(
            [python, *arguments],
            env={name: value for name, value in os.environ.items() if name not in own},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip()
        shown = "\n".join(said.splitlines()[-_SHOWN_LINES:])
        raise MachineError(
            f"{what} failed; call the command again to go on, or fix this first:\n{shown}"
        ) from error


def _read(mark: Path) -> dict[str, object] | None:
    try:
        found: dict[str, object] = json.loads(mark.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found
