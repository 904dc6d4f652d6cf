"""From the wheel: ``agentrl check`` and two steps of each example, with the wheel alone installed.

``.ci/wheel-alone`` runs it by the Python of a fresh environment, beside the examples and away from
the package's source. What an example needs beside the
wheel is in ``NEEDS``: its check must end with the command that brings it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
import tempfile
import time
from pathlib import Path

import agentrl
from agentrl.cli.main import run as run_command_line
from agentrl.types.user_code.load import install
from tests.examples.published import SAMPLES, build_model, prepared
from tests.examples.shipped import CONFIGS, small

NEEDS = {"game": "gymnasium", "mcp": "mcp"}
"""Examples that need an extra."""
OF_TESTS = (
    "pytest",
    "hypothesis",
    "scipy",
    "gymnasium",
    "mcp",
    "math_verify",
    "tensorboard",
    "trl",
)
ELSEWHERE = {"openai_agents": "its agent runs in an environment of its own (make agents)"}


def settings_of(example: str, folder: Path) -> tuple[Path, list[str]]:
    """Its configuration, and the settings that stand for the published data and model."""
    if example not in SAMPLES:
        return CONFIGS[example], []
    build_model(folder / "model", example)
    return prepared(example, folder), [f"model.path={folder / 'model'}"]


def said(arguments: list[str]) -> tuple[int, str]:
    """The exit code of a command, and all that it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = run_command_line(arguments)
    return code, out.getvalue()


def faults_of(example: str, folder: Path) -> list[str]:
    """What does not work of an example."""
    config, settings = settings_of(example, folder)
    code, text = said(["check", str(config), *settings])
    if extra := NEEDS.get(example):
        is_told = code != 0 and install(extra) in " ".join(text.split())
        return (
            [] if is_told else [f"check must tell {install(extra)!r}, got {code}:\n{text}"]
        )
    if code:
        return [f"check ended with {code}:\n{text}"]
    steps = [f"run.dir={folder / 'run'}", "placement.mode=inline", *small(config)]
    code, text = said(["train", str(config), *settings, *steps])
    return [f"two steps ended with {code}:\n{text[-3000:]}"] if code else []


def main() -> int:
    """Prints a line an example; how many have a fault."""
    assert Path(agentrl.__file__).is_relative_to(sys.prefix), agentrl.__file__
    brought = [name for name in OF_TESTS if importlib.util.find_spec(name)]
    assert not brought, f"the wheel must do without {', '.join(brought)}"
    failed = 0
    here = [example for example in CONFIGS if example not in ELSEWHERE]
    for example, why in ELSEWHERE.items():
        print(f"{example}: not here, {why}")
    for example in here:
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            faults = faults_of(example, Path(folder))
        print(
            f"{example}: {'failed' if faults else 'ok'} in {time.monotonic() - started:.0f} s"
        )
        print("\n".join(faults), end="", flush=True)
        failed += bool(faults)
    print(f"wheel-examples: {len(here) - failed} passed, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(main())
