"""Builds an environment for SGLang servers with pip, and proves that the server can be loaded in
it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

from agentrl.errors import ConfigError, MachineError
from agentrl.run.install.sglang_env.recipe import (
    CPU,
    GPU,
    SGLANG_VERSION,
    Recipe,
    default_folder,
    interpreter,
)

_MARK = "agentrl-sglang.json"
_STEP_S = 3600.0
_PROOF_S = 600.0
_STAND_INS = {"kernels.py": "sgl_kernel/__init__.py", "vision_ops.py": "agentrl_vision_ops.py"}
_SHOWN_LINES = 15


def build_environment(
    folder: Path, recipe: Recipe, *, torch_index: str | None, tell: Callable[[str], None]
) -> tuple[Path, bool]:
    """Makes the environment in ``folder``, or finds it made already and renews what is ours in it.

    A build that was broken off goes on.

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
    mark = folder / _MARK
    python = interpreter(folder)
    record = {"sglang": SGLANG_VERSION, "recipe": recipe.name, "complete": True}
    found = _read(mark)
    if found == record and python.exists():
        if recipe.stand_ins:
            _place_stand_ins(python)  # those of an earlier version of ours may lack something
        return python, False
    if found is None and folder.exists() and any(folder.iterdir()):
        raise ConfigError(
            f"--dir={folder} must be a new or empty folder, and it holds other files; name another"
        )
    if found is not None and {**found, "complete": True} != record:
        raise ConfigError(
            f"--dir={folder} holds an environment of SGLang {found.get('sglang')} for "
            f"{found.get('recipe')}, {SGLANG_VERSION} for {recipe.name} was asked for; name "
            "another folder, or delete that one"
        )
    folder.mkdir(parents=True, exist_ok=True)
    mark.write_text(json.dumps({**record, "complete": False}), encoding="utf-8")
    tell(f"making {folder} with Python {sys.version_info.major}.{sys.version_info.minor}")
    venv.create(folder, with_pip=True)
    index = torch_index or recipe.torch_index
    for number, step in enumerate(recipe.steps, 1):
        packages = [word for word in step if not word.startswith("-")]
        more = " and more" if len(packages) > 1 else ""
        tell(f"step {number} of {len(recipe.steps)}: {packages[0]}{more}")
        extra = ["--extra-index-url", index] if index and step[0].startswith("torch==") else []
        words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", *extra, *step]
        _run(python, words, _STEP_S, f"pip install {packages[0]}")
    if recipe.stand_ins:
        _place_stand_ins(python)
    tell("loading the server, to see that it can be")
    _run(python, ["-m", "sglang.launch_server", "--help"], _PROOF_S, "loading the server")
    mark.write_text(json.dumps(record), encoding="utf-8")
    return python, True


def installed_environments() -> list[str]:
    """A line for each environment of SGLang servers at its default place, the one that is used
    first.
    """
    lines = []
    for folder in map(default_folder, (GPU, CPU)):
        if found := _read(folder / _MARK):
            ready = found.get("complete") is True and interpreter(folder).exists()
            state = "" if ready else ", not finished: agentrl install sglang goes on with it"
            lines.append(f"{found.get('sglang')} for {found.get('recipe')} in {folder}{state}")
    return lines


def _place_stand_ins(python: Path) -> None:
    """Puts our two modules among the environment's packages (see each)."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(
        _run(python, ["-c", code], _PROOF_S, "finding the environment's packages").strip()
    )
    for source, target in _STAND_INS.items():
        (packages / target).parent.mkdir(exist_ok=True)
        shutil.copyfile(Path(__file__).parent / "stand_ins" / source, packages / target)
    (packages / "agentrl_vision_ops.pth").write_text("import agentrl_vision_ops\n")


def _run(python: Path, arguments: list[str], seconds: float, what: str) -> str:
    environment = os.environ.copy()
    for name in ("PYTHONPATH", "PYTHONHOME"):
        environment.pop(name, None)
    try:
        return subprocess.run(
            [python, *arguments],
            env=environment,
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
