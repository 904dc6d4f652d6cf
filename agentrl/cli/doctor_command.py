"""``agentrl doctor``."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

__all__ = ["doctor_command"]

_PACKAGES = ("agentrl", "torch", "ray", "transformers", "tokenizers", "sglang")


def doctor_command() -> None:
    """Say what this machine offers: processors, accelerators, packages, and what each sandbox really guarantees."""
    from agentrl.cli.terminal import print_table
    from agentrl.sandbox import GUARANTEES, probe_backends

    print(f"python {platform.python_version()} on {platform.platform()}")
    print(f"processors: {_processors()} usable of {os.cpu_count()}")
    print(f"accelerators: {_accelerators()}")
    print_table(("package", "version"), [(name, _version(name)) for name in _PACKAGES])
    print()
    reports = probe_backends()
    rows = [(name, *("yes" if name in report.held else "no" for report in reports)) for name in GUARANTEES]
    print_table(("sandbox guarantees", *(report.backend for report in reports)), rows)
    for report in reports:
        if report.problem or report.notes:
            print(f"{report.backend}: {report.problem or report.notes}")


def _processors() -> int:
    usable = getattr(os, "sched_getaffinity", None)  # Linux alone has it
    return len(usable(0)) if usable else os.cpu_count() or 1


def _accelerators() -> str:
    import torch

    if torch.cuda.is_available():
        return ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    return "none (torch runs on the CPU)"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
