"""``run.json``: what ran, so that a result can be traced to its code, data, seeds and machine."""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import agentrl
from agentrl.config import RunConfig, StageConfig, to_yaml
from agentrl.store import RunDirectory

_PACKAGES = ("agentrl", "torch", "transformers", "ray", "numpy", "tokenizers")


def new_run(
    root: Path | str,
    config: RunConfig,
    parent: str | None,
    *,
    data: Mapping[str, str] | None = None,
    sandbox: Mapping[str, Any] | None = None,
    stages: Sequence[StageConfig] | None = None,
    **more: Any,
) -> RunDirectory:
    """Makes a run directory with its record and its configuration.

    Args:
        root: the folder.
        config: what runs.
        parent: the run or model folder that it starts from.
        data: SHA-256 of each data set, by name.
        sandbox: the backend and what it guarantees on this machine.
        stages: of ``config`` as they run, where they differ from those written in it.
        more: what else the record says.

    Raises:
        ConfigError: the folder holds files, or cannot be made.
    """
    record = {
        "id": secrets.token_hex(8),
        "created": utc_time(),
        "command": command_line(),
        "git": git_state(),
        "versions": {name: found for name in _PACKAGES if (found := package_version(name))},
        "python": platform.python_version(),
        "host": {
            "name": platform.node(),
            "system": platform.platform(),
            "cpus": os.cpu_count(),
        },
        "seed": config.run.seed,
        "data": data or {},
        "parent": parent,
        "sandbox": sandbox or {},
        **more,
    }
    return RunDirectory.create(root, record, to_yaml(config, stages=stages))


def utc_time() -> str:
    """Now, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def command_line() -> list[str]:
    """The program and its arguments."""
    return [Path(sys.argv[0]).name, *sys.argv[1:]]


def package_version(package: str) -> str | None:
    """Of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git_state() -> dict[str, str] | None:
    """Commit, and hash of what differs from it; None where agentrl does not run from a checkout."""
    folder = Path(agentrl.__file__).parent
    try:
        commit = _run_git(folder, "rev-parse", "HEAD")
        difference = _run_git(folder, "diff", "HEAD")
    except (OSError, subprocess.SubprocessError):
        return None
    return {
        "commit": commit.decode().strip(),
        "diff_sha256": hashlib.sha256(difference).hexdigest() if difference else "",
    }


def _run_git(folder: Path, *args: str) -> bytes:
    done = subprocess.run(
        ["git", "-C", str(folder), *args], capture_output=True, check=True, timeout=10
    )
    return done.stdout
