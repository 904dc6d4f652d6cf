"""Images: found for a run, pulled or built ahead, never without notice."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import docker
import requests

from agentrl.errors import MachineError
from agentrl.guards.secret_mask import ending

from .bundle import GRAFT_FOLDER, graft_tar, image_tar
from .containers import Client, asked, connect
from .settings import LOCAL_PYTHON, DockerSettings

# the host's own code
OLDEST_PYTHON = (3, 10)
PYTHON_COMMAND = ("python3",)
_GRAFT_OF = "agentrl.sandbox.graft-of"
_GRAFT_COMMAND = "agentrl.sandbox.python"
_REPOSITORY = "agentrl-sandbox"


@dataclass(frozen=True, slots=True)
class EngineImage:
    """An image of the engine in which the host can be started.

    Attributes:
        id: the engine's name for it.
        name: the user's.
        python: the command of its interpreter.
        grafted: whether :func:`prepare` put that interpreter there.
    """

    id: str
    name: str
    python: tuple[str, ...]
    grafted: bool


@dataclass(frozen=True, slots=True)
class Prepared:
    """What :func:`prepare` did for one image: ``present``, ``pulled``, ``built`` or ``made``; and
    whether it put a Python beside what the image holds.
    """

    name: str
    how: str
    grafted: bool

    def __str__(self) -> str:
        beside = ", and a Python beside what it holds" if self.grafted else ""
        return f"{self.name}: {self.how}{beside}"


def find(client: Client, name: str) -> EngineImage:
    """The image to run for the user's name.

    Raises:
        MachineError: it is not there; with the command that brings it.
        SandboxError: the engine failed.
    """
    with asked(f"look for the image {name}"):
        found = _inspect(client, name)
        if found is None:
            raise MachineError(f"the image {name} is not there; type: {_command(name)}")
        for graft in client.api.images(filters={"label": f"{_GRAFT_OF}={found}"}):
            return EngineImage(
                graft["Id"],
                name,
                tuple(json.loads(graft["Labels"][_GRAFT_COMMAND])),
                grafted=True,
            )
    return EngineImage(found, name, PYTHON_COMMAND, grafted=False)


def lacks_python(name: str, why: str) -> MachineError:
    """The error for an image in which the host cannot be started."""
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return MachineError(
        f"the image {name} {why}, and the host of the sandboxes needs Python {oldest} or later; to "
        f"put one beside what the image holds, type: {_command(name)}"
    )


def prepare(names: Iterable[str], settings: DockerSettings | None = None) -> list[Prepared]:
    """Make images ready for runs: pull or build what is missing, and add a Python where there is
    none.

    Args:
        names: images, or folders with a Dockerfile; ``LOCAL_PYTHON`` is made of this interpreter.
        settings: which engine; by default the one that DOCKER_HOST or the current Docker context
            names.

    Raises:
        MachineError: one cannot be pulled or built, or no Python can be added.
        SandboxError: the engine failed.
    """
    client = connect(settings or DockerSettings())
    try:
        return [_prepare_one(client, name) for name in names]
    finally:
        client.close()


def _prepare_one(client: Client, name: str) -> Prepared:
    with asked(f"make the image {name} ready"):
        how = "present" if _inspect(client, name) is not None else _bring(client, name)
        image = find(client, name)
        if not image.grafted and not _has_python(client, image):
            _graft(client, image)
            return Prepared(name, how, grafted=True)
    return Prepared(name, how, image.grafted)


def _command(name: str) -> str:
    return f"`agentrl doctor --prepare {shlex.quote(name)}`"


def _inspect(client: Client, name: str) -> str | None:
    """The id of an image that is there, or None."""
    try:
        return str(client.api.inspect_image(_tag(name) if _is_folder(name) else name)["Id"])
    except docker.errors.NotFound:
        return None


def _bring(client: Client, name: str) -> str:
    """Pull, build or make an image; the word for it."""
    try:
        if name == LOCAL_PYTHON:
            # podman takes no tag
            said = json.loads(
                client.api.import_image_from_data(image_tar(), repository=name)
            )
            if "error" in said:
                raise MachineError(
                    f"the engine could not import the image {name}: {said['error']}"
                )
            return "made"
        if _is_folder(name):
            client.images.build(
                path=os.path.expanduser(name), tag=_tag(name), rm=True, forcerm=True
            )
            return "built"
        client.images.pull(
            name, tag=None if ":" in name.rpartition("/")[2] or "@" in name else "latest"
        )
    except docker.errors.BuildError as error:
        log = "".join(line.get("stream", "") for line in error.build_log)
        log = ending(log.strip(), 1000)
        raise MachineError(
            f"the image of {name} could not be built: {error.msg}; {log}"
        ) from error
    except (docker.errors.APIError, requests.RequestException) as error:
        why = getattr(error, "explanation", None) or error
        raise MachineError(
            f"the image {name} could not be brought: {why}; check the name and the way to its "
            "registry"
        ) from error
    return "pulled"


def _is_folder(name: str) -> bool:
    return name.startswith(("./", "../", "/", "~")) or name in (".", "..")


def _tag(folder: str) -> str:
    """The name of the image built of a folder; another one when a file of it changes.

    Raises:
        MachineError: there is no Dockerfile.
    """
    root = Path(folder).expanduser().resolve()
    if not (root / "Dockerfile").is_file():
        raise MachineError(
            f"sandbox image {folder}: the folder has no Dockerfile; add one, or name another"
        )
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        data = path.read_bytes()
        digest.update(
            f"{path.relative_to(root)}\0{path.stat().st_mode:o}\0{len(data)}\0".encode()
            + data
        )
    return f"{_REPOSITORY}:{digest.hexdigest()[:20]}"


def _has_python(client: Client, image: EngineImage) -> bool:
    """Whether a Python that is new enough runs in the image, found out by running it."""
    check = f"import sys; sys.exit(0 if sys.version_info >= {OLDEST_PYTHON!r} else 1)"
    container = client.api.create_container(
        image.id,
        entrypoint=[*image.python, "-I", "-S", "-c", check],
        host_config=client.api.create_host_config(
            network_mode="none", read_only=True, cap_drop=["ALL"]
        ),
        user="0:0",
    )
    try:
        client.api.start(container)
        return bool(client.api.wait(container)["StatusCode"] == 0)
    except docker.errors.APIError as error:
        if (
            error.is_client_error()
            or "executable file not found" in str(error)
            or "no such file" in str(error).lower()
        ):
            # the engine's words for a program that is not there
            return False
        raise
    finally:
        client.api.remove_container(container, force=True)


def _graft(client: Client, image: EngineImage) -> None:
    """An image with all of another, and this machine's Python in a folder of its own."""
    info = client.api.inspect_image(image.id)
    engine_arch = info["Architecture"]
    own_arch = os.uname().machine
    if {"amd64": "x86_64", "arm64": "aarch64"}.get(engine_arch, engine_arch) != own_arch:
        raise MachineError(
            f"the image {image.name} has no Python and is for {engine_arch}, this machine is "
            f"{own_arch}: its Python "
            "cannot be added; add python3 in a Dockerfile and name that folder"
        )
    context, command = graft_tar(f"FROM {image.id}\nCOPY {GRAFT_FOLDER} {GRAFT_FOLDER}\n")
    client.images.build(
        fileobj=io.BytesIO(context),
        custom_context=True,
        tag=f"{_REPOSITORY}:graft-{image.id[-12:]}",
        labels={_GRAFT_OF: image.id, _GRAFT_COMMAND: json.dumps(command)},
        rm=True,
        forcerm=True,
    )
