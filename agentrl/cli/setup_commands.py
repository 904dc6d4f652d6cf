"""Setup commands: ``agentrl init``, ``agentrl doctor`` and ``agentrl install``."""

from __future__ import annotations

import math
import os
import platform
import shlex
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from agentrl.cli.terminal import Flag, print_table, say
from agentrl.errors import ConfigError, MachineError

_FILES = ("task.py", "test_task.py", "config.yaml")


def init_command(folder: Path, /) -> None:
    """Write a first project: a tool, an environment, a reward, a test and a configuration.

    It trains two steps of a tiny model on a CPU, and is meant to be changed.

    Parameters
    ----------
    folder
        Where; a file that is there already is never written over.
    """
    templates = files("agentrl.cli") / "project"
    texts = {
        name: (templates / f"{name}.txt").read_text(encoding="utf-8") for name in _FILES
    }
    try:
        there = [name for name in _FILES if (folder / name).exists()]
        if there:
            raise ConfigError(f"{folder / there[0]} exists already; name another folder")
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{folder} must be a folder that can be made and written: "
            f"{error.strerror or error}; name another folder"
        ) from error
    say(f"{folder}: {', '.join(_FILES)}")
    config = shlex.quote(str(folder / "config.yaml"))
    say(f"agentrl check {config}    # data, tools, environment and rewards", whole=True)
    say(f"agentrl play {config}     # be the policy", whole=True)
    say(f"agentrl train {config}    # two steps of a tiny model", whole=True)


_PACKAGES = ("agentrl", "torch", "ray", "transformers", "tokenizers")


def doctor_command(
    *,
    prepare: Annotated[
        Sequence[str] | None, Parameter(consume_multiple=True, negative="")
    ] = None,
    reap: Annotated[bool, Parameter(negative="")] = False,
    cluster: str | None = None,
) -> None:
    """Say what this machine offers: processors, accelerators, packages, sandboxes' guarantees.

    Args:
        prepare: pull images for docker, or build folders with a Dockerfile, instead;
            without a name its default image.
        reap: instead remove what dead runs left: sandboxes, folders, containers, servers.
        cluster: ask each machine of the Ray cluster at this address instead (``auto``: of this
            machine's): versions, clock, and the speed of a sum over all of them.
    """
    if prepare is not None:
        _prepare(prepare)
    if reap:
        _reap()
    if cluster is not None:
        _print_cluster(cluster)
    if reap or prepare is not None or cluster is not None:
        return
    print(f"python {platform.python_version()} on {platform.platform()}")
    print(f"processors: {_processors()} usable of {os.cpu_count()}")
    for line in _accelerators():
        say(line)
    _print_packages()
    print()
    _print_sandboxes()


def _print_packages() -> None:
    from agentrl.engines.find import server_environments
    from agentrl.run.lifetime.record import package_version

    print_table(
        ("package", "version"),
        [(name, package_version(name) or "not installed") for name in _PACKAGES],
    )
    for own in server_environments().values():
        missing = f"none here; `agentrl install {own.engine}` makes one"
        for line in own.installed() or [missing]:
            say(f"{own.product}'s environment: {line}")


def _print_sandboxes() -> None:
    """What every backend guarantees, measured, and the one that ``sandbox.backend: auto`` takes."""
    from agentrl.config.key_names import with_keys
    from agentrl.sandbox import GUARANTEES, SandboxSpec, probe_backends

    reports = probe_backends()
    rows = [
        (name, *("yes" if name in report.held else "no" for report in reports))
        for name in GUARANTEES
    ]
    print_table(("sandbox guarantees", *(report.backend for report in reports)), rows)
    for report in reports:
        if report.problem or report.notes:
            say(with_keys(f"{report.backend}: {report.problem or report.notes}"))
    try:
        print(f"sandbox.backend: auto takes {SandboxSpec().check().backend} here")
    except MachineError as error:
        say(with_keys(str(error)))


def _prepare(images: Sequence[str]) -> None:
    from agentrl.sandbox.docker.images import prepare
    from agentrl.sandbox.docker.settings import DEFAULT_IMAGE

    for done in prepare(images or (DEFAULT_IMAGE,)):
        say(str(done))


def _reap() -> None:
    from agentrl.config.key_names import with_keys
    from agentrl.engines.servers.orphan_cleanup import reap_servers
    from agentrl.sandbox.docker.containers import remove_orphaned_containers
    from agentrl.sandbox.orphan_cleanup import remove_orphans

    removed = remove_orphans() + reap_servers()
    try:
        removed += remove_orphaned_containers()
    except MachineError as error:
        say(with_keys(f"containers: not looked for: {error}"))
    for line in removed:
        say(f"removed {line}")
    if not removed:
        print("nothing was left by dead runs")


def _print_cluster(address: str) -> None:
    """A row a machine, then what differs among them and should not."""
    from agentrl.controller.cluster.cluster_probe import probe_cluster

    machines = probe_cluster(address)
    print_table(
        ("machine", "CPUs", "GPUs", "clock", "interface", "sum over all"),
        [
            (
                machine.address,
                f"{machine.cpus:g}",
                f"{machine.gpus:g}",
                f"{machine.clock_s:+.3f} s",
                machine.interface or "-",
                "-" if math.isnan(machine.sum_gb_s) else f"{machine.sum_gb_s:.2f} GB/s",
            )
            for machine in machines
        ],
    )
    for package in machines[0].versions:
        found = {machine.versions[package] for machine in machines}
        differs = "" if len(found) == 1 else " (they differ: install one everywhere)"
        say(f"{package} {', '.join(sorted(found))}{differs}")


def _processors() -> int:
    # Linux alone has this function.
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1


def _accelerators() -> Iterator[str]:
    import torch
    from torch import distributed

    from agentrl.training.data.kernel_attention import usable_attention
    from agentrl.training.device import gpus

    found = gpus()
    yield f"accelerators: {', '.join(map(str, found)) or 'none (torch runs on the CPU)'}"
    driver = Path("/proc/driver/nvidia/version")
    if driver.is_file():
        yield f"NVIDIA's driver: {driver.read_text(encoding='utf-8').splitlines()[0]}"
    if not found:
        return
    for index, gpu in enumerate(found):
        free, total = torch.cuda.mem_get_info(index)
        yield f"cuda:{index}: {free / 2**30:.1f} of {total / 2**30:.1f} GiB are free, {gpu.name}"
    nccl = torch.cuda.nccl.version() if distributed.is_nccl_available() else ()  # type: ignore[no-untyped-call]
    yield f"CUDA of torch {torch.version.cuda}, NCCL {'.'.join(map(str, nccl)) or 'absent'}"
    yield f"model.attention on a GPU: {', '.join(usable_attention())}"


def install_command(
    engine: str,
    /,
    *,
    folder: Annotated[Path | None, Parameter(name="--dir")] = None,
    gpu: Flag = False,
    torch_index: str | None = None,
) -> None:
    """Build the environment that a server of another program runs in, beside agentrl's own.

    Parameters
    ----------
    engine
        The engine that starts such servers, such as sglang. Takes minutes, and about 2 GB without
        a GPU.
    folder
        Where; by default below the user's data folder, where rollout.ENGINE.python finds it.
    gpu
        With CUDA; by default for the CPU.
    torch_index
        A package index that has torch for the CPU, instead of PyTorch's own.
    """
    from agentrl.engines.find import server_environment

    environment = server_environment(engine)
    recipe = environment.recipe("gpu" if gpu else "cpu")
    place = (folder or environment.folder(recipe)).expanduser().absolute()
    python, made = environment.build(place, recipe, torch_index=torch_index, tell=say)
    state = "ready" if made else "there already"
    say(f"{environment.product} {environment.version} is {state}: {python}")
    if folder is not None:
        settings = (
            f"rollout.engine={engine}",
            f"rollout.{environment.engine}.python={python}",
        )
        say(f"use it with {shlex.join(settings)}", whole=True)
