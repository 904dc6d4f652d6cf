"""Engine connection: finds the container engine and names its failures."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import docker
import requests

from agentrl.errors import MachineError, SandboxError

from .settings import DockerSettings

# docker.DockerClient, which has no types
Client = Any

# Docker 19.03, podman 3
_OLDEST_API = (1, 40)
_TIMEOUT_S = 60
_USUAL_HOST = "unix:///var/run/docker.sock"
_answered: set[str] = set()
# guards _answered: hosts start on threads of their own
_lock = threading.Lock()


def connect(settings: DockerSettings) -> Client:
    """A client of the engine that the settings, DOCKER_HOST or the current Docker context name.

    Raises:
        MachineError: no engine answers there, or it is too old; with the remedy.
        SandboxError: one that answered this process before does not answer now.
    """
    way = _way(settings)
    place = str(way["base_url"])
    if place.startswith("ssh://"):
        raise MachineError(
            f"the container engine at {place} is behind ssh; forward its socket and name that: "
            f"ssh -nNT -L /tmp/engine.sock:/var/run/docker.sock {place.removeprefix('ssh://')} & "
            "export DOCKER_HOST=unix:///tmp/engine.sock"
        )
    oldest = ".".join(map(str, _OLDEST_API))
    try:
        with closing(_open(way, oldest)) as client:
            version = str(client.api.version(api_version=False)["ApiVersion"])
    except (docker.errors.DockerException, requests.RequestException, OSError, ValueError) as error:
        why, remedy = _reason(error, place)
        with _lock:
            answered = place in _answered
        if answered:
            raise SandboxError(
                f"the container engine at {place} answered before and does not now: {why}"
            ) from error
        raise MachineError(f"no container engine answers at {place}: {why}; {remedy}") from error
    if tuple(map(int, version.split("."))) < _OLDEST_API:
        raise MachineError(
            f"the container engine at {place} speaks Docker API {version}; {oldest} (Docker 19.03, "
            "podman 3) or later is needed; update it"
        )
    with _lock:
        _answered.add(place)
    return _open(way, version)


def _open(way: dict[str, Any], version: str) -> Client:
    client = docker.DockerClient(version=version, timeout=_TIMEOUT_S, **way)
    if "tls" in way:
        # REQUESTS_CA_BUNDLE would take the place of the engine's own authority
        client.api.trust_env = False
    return client


def _way(settings: DockerSettings) -> dict[str, Any]:
    """Address and TLS: of the settings, DOCKER_HOST, the ``docker`` command's current context, or
    the usual socket.

    Raises:
        MachineError: there is no such context, or its certificates cannot be read.
    """
    named = settings.host or os.environ.get("DOCKER_HOST")
    context = os.environ.get("DOCKER_CONTEXT")
    try:
        if named:
            return dict(docker.utils.kwargs_from_env({**os.environ, "DOCKER_HOST": named}))
        found = dict(docker.context.ContextAPI.kwargs_from_context())
    except (docker.errors.DockerException, OSError, ValueError) as error:
        raise MachineError(
            f"the way to the container engine cannot be used: {error}; correct DOCKER_CERT_PATH or "
            "the current Docker context (docker context ls), or set DOCKER_HOST"
        ) from error
    if context not in (None, "", "default") and not found:
        raise MachineError(
            f"DOCKER_CONTEXT={context!r} does not exist; docker context ls shows those that do"
        )
    return {"base_url": _USUAL_HOST, **found}


def _reason(error: BaseException, place: str) -> tuple[str, str]:
    """What went wrong and what to do, by the first cause that says so."""
    causes = list(_causes(error))
    start = (
        "start it (systemctl start docker, or Docker Desktop), or name one in DOCKER_HOST or "
        "DockerSettings.host"
    )
    own = (
        'let this user speak to it (sudo usermod -aG docker "$USER", then log in again), or set '
        "DOCKER_HOST to an engine of your own (podman system service)"
    )
    known: tuple[tuple[Any, str, str], ...] = (
        (FileNotFoundError, "the socket does not exist", start),
        (ConnectionRefusedError, "the connection is refused", start),
        (PermissionError, "permission denied", own),
        (socket.gaierror, "the name is unknown", "correct DOCKER_HOST or DockerSettings.host"),
        (ssl.SSLError, "TLS failed: {}", "check DOCKER_TLS_VERIFY and DOCKER_CERT_PATH"),
        (TimeoutError | requests.Timeout, f"no answer within {_TIMEOUT_S} s", start),
        (
            docker.errors.InvalidVersion,
            "it is too old: {}",
            "update it to Docker 19.03 or podman 3 or later",
        ),
    )
    for kind, why, remedy in known:
        if found := [cause for cause in causes if isinstance(cause, kind)]:
            return why.format(found[0]), remedy
    return str(causes[0]), f"see that it works (docker -H {place} info)"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, what it wraps, and what that wraps: requests and urllib3 hide the cause among the
    arguments.
    """
    pending = [error]
    seen = set[int]()
    while pending:
        one = pending.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        inner = (*one.args, one.__cause__, one.__context__, getattr(one, "reason", None))
        pending += [cause for cause in inner if isinstance(cause, BaseException)]


@contextmanager
def asked(what: str) -> Iterator[None]:
    """Ask the engine for something: a failure is a SandboxError that says what was asked, and may
    be retried.

    Raises:
        SandboxError: the engine refused, or was gone.
    """
    try:
        yield
    except docker.errors.APIError as error:
        raise SandboxError(
            f"the container engine could not {what}: {error.explanation or error}"
        ) from error
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        raise SandboxError(f"the container engine could not {what}: {error}") from error
