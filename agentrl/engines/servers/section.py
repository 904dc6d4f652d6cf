"""Settings that every engine of servers has, whichever program serves."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from agentrl.engines.base import (
    EnginePlace,
    EngineSpec,
    EngineTraits,
    HostedEngine,
    Transport,
    TransportName,
    WeightSender,
)
from agentrl.engines.servers.environment import ServerEnvironment
from agentrl.errors import ConfigError, MachineError
from agentrl.llm.server import is_http_url
from agentrl.store.remote_folder import is_url
from agentrl.types.section import (
    ActsWith,
    Arguments,
    Count,
    Fraction,
    Listed,
    Natural,
    Seconds,
)
from agentrl.types.user_code.load import load_object

OF_STARTED = ActsWith("urls", only=((),))
"""Marks what servers are started with: nothing that reaches those that run already."""


class ServersSpec(EngineSpec):
    """Servers: those that are started, or those that are given by their URLs."""

    python: Annotated[str | None, OF_STARTED] = None
    """Interpreter of the servers' environment; by default that of ``agentrl install``."""
    command: Annotated[Listed[str], OF_STARTED] = ()
    """Command that starts a server, instead of that interpreter: it gets the server's arguments,
    must end with its server, and needs ``device``."""
    urls: Listed[str] = ()
    """Servers that run already, instead of starting some; they must serve this model and have no
    other owner."""
    num_servers: Count = 1
    """Servers that each process that plays episodes starts."""
    tp_size: Annotated[Count, OF_STARTED] = 1
    """Tensor-parallel ranks of a server."""
    max_running_requests: Annotated[Count | None, OF_STARTED] = None
    """Requests that a server decodes at once; by default the program's own choice."""
    kv_memory_fraction: Annotated[Fraction | None, OF_STARTED] = None
    """Share of a device's memory for weights and KV cache; by default the program's own choice, or,
    on GPUs that a server has in turn with ranks, what a count on paper leaves (docs/sglang.md)."""
    server_args: Annotated[Arguments, OF_STARTED] = Field(default_factory=dict)
    """Further arguments of the program by name, without dashes in front; true is a flag."""
    device: Literal["cpu", "cuda"] | None = None
    """Of the servers; by default what the environment of those that are started offers. Beside
    ``urls``, ``cuda`` has a ``broadcast`` go by NCCL."""
    weight_sync: TransportName | None = None
    """Transport of new weights: ``shared_memory`` of this machine, ``http`` calls that hold the
    tensors, a folder on ``disk`` that every server reads, or a ``broadcast`` in a process group. By
    default ``http`` with ``urls`` or ``command``, else ``shared_memory``."""
    weights_folder: str | None = None
    """Folder, or URL of fsspec as ``s3://bucket/weights``, that ``weight_sync: disk`` writes to; by
    default in the run directory. Each engine has one of its own in it."""
    weights_mount: str | None = None
    """Folder as which servers see ``weights_folder``, where they know it by another name; for a
    URL, where they have it mounted."""
    broadcast_address: str | None = None
    """Address of the trainer's rank 0 as servers reach it, for ``weight_sync: broadcast``; by
    default the one by which Ray knows its machine, and 127.0.0.1 without Ray."""
    env: Annotated[dict[str, str], OF_STARTED] = Field(default_factory=dict)
    """Further environment variables of the servers."""
    api_key_env: str | None = None
    """Environment variable with the servers' API key."""
    startup_timeout_s: Seconds = 600.0
    """Until a server must be ready; a publish waits so long where no given server answers."""
    call_timeout_s: Seconds = 60.0
    """Of a call that neither generates nor moves weights."""
    update_timeout_s: Seconds = 600.0
    """Of a call that moves weights."""
    health_interval_s: Seconds = 10.0
    """Between health checks of each server."""
    max_restarts: Annotated[Natural, OF_STARTED] = 3
    """Of one server in a stage, until it is given up."""

    engine: ClassVar[str]
    """``module:class`` of the engine, which takes a place, this section and a sender."""
    server_environment: ClassVar[ServerEnvironment]
    """Where such servers run: how it is built and found."""
    own_arguments: ClassVar[tuple[str, ...]] = ()
    """Arguments of the program that agentrl sets itself."""

    @field_validator("urls")
    @classmethod
    def _are_servers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        seen: set[str] = set()
        for url in value:
            own = url.rstrip("/")
            if not is_http_url(url) or own in seen:
                raise cls.broken(
                    "urls",
                    " must be one URL a server, such as http://10.0.0.7:30000, got "
                    f"{url!r}{' twice' * (own in seen)}; correct it",
                )
            seen.add(own)
        return value

    @field_validator("server_args")
    @classmethod
    def _not_own(cls, value: Arguments) -> Arguments:
        for name in value:
            if argument_name(name) in cls.own_arguments:
                raise cls.broken(
                    "server_args",
                    f" must not have {name!r}, which agentrl sets itself; use the setting of that "
                    f"meaning (docs/{cls.section}.md)",
                )
        return value

    @model_validator(mode="after")
    def _fits(self) -> ServersSpec:
        if self.urls and self.num_servers not in (1, len(self.urls)):
            raise self.broken(
                "num_servers",
                f" must be the number of urls, {len(self.urls)}, or left out, got "
                f"{self.num_servers}; given servers are not started",
            )
        if self.command and self.device is None:
            raise self.broken(
                "command",
                f"={list(self.command)} needs device, 'cpu' or 'cuda', since it cannot be asked "
                "what it starts a server on; set it",
            )
        return self

    @model_validator(mode="after")
    def _finds_weights(self) -> ServersSpec:
        folder, mount = self.weights_folder, self.weights_mount
        if folder is None and mount is None:
            return self
        if folder is None or self.weight_sync != "disk":
            setting = "weights_mount" if folder is None else "weights_folder"
            raise self.broken(
                setting,
                f" needs {'weights_folder' if folder is None else 'weight_sync=disk'}, got "
                f"'{folder or mount}' without it; set it, or leave {setting} out",
            )
        if is_url(folder) and mount is None:
            raise self.broken(
                "weights_folder",
                f"='{folder}' is a URL, and servers load weights from a folder; set weights_mount "
                "to the one as which they see it",
            )
        paths = {
            "weights_folder": "/" if is_url(folder) else folder,
            "weights_mount": mount or "/",
        }
        for name, path in paths.items():
            if not path.startswith("/"):
                raise self.broken(
                    name,
                    " must be an absolute path, since servers start in other folders, got "
                    f"'{path}'; write all of it",
                )
        return self

    @property
    def _shares_gpu(self) -> bool:
        """Whether servers come up on the first GPU of the process that starts them."""
        return not self.urls and "CUDA_VISIBLE_DEVICES" not in self.env

    @property
    def _transport(self) -> TransportName:
        """By default. A command may start its servers in a container or on another machine."""
        return "http" if self.urls or self.command else "shared_memory"

    def traits(self) -> EngineTraits:
        """See ``EngineSpec.traits``: given servers have one owner."""
        way = self.weight_sync or self._transport
        transport = Transport(way, self.device, self.broadcast_address)
        beside = self._shares_gpu
        shares = beside and self.device != "cpu"
        return EngineTraits(
            images=True,
            max_owners=1 if self.urls else None,
            transport=transport,
            ranks_a_server=self.tp_size if beside else 0,
            gpus=self.num_servers * self.tp_size if shares else 0,
        )

    def resolve(self, place: EnginePlace) -> EnginePlace:
        """See ``EngineSpec.resolve``: the interpreter exists, and the API key is read.

        Raises:
            MachineError: no environment for servers is where the section says, or none was built.
            ConfigError: the variable of the API key is not set.
        """
        where = type(self).__name__
        own = self.server_environment
        place = replace(place, server_python=str(own.python()))
        path = self.interpreter(place)
        if not (self.urls or self.command or path.is_file()):
            given = f"{where}.python='{self.python}' is no file"
            raise MachineError(
                f"the engine '{self.section}' needs an environment with {own.product}, and "
                f"{given if self.python else f'there is none at {path}'}; run `agentrl install "
                f"{self.section}`, or set {where}.python or {where}.urls"
            )
        if self.api_key_env is None:
            return place
        if self.api_key_env not in os.environ:
            raise ConfigError(
                f"{where}.api_key_env='{self.api_key_env}' must name an environment variable that "
                "is set; export it, or leave the setting out"
            )
        return replace(place, api_key=os.environ[self.api_key_env])

    def build(self, place: EnginePlace, sender: WeightSender | None = None) -> HostedEngine:
        """Starts the servers, or looks at those given, and waits until all serve.

        Raises:
            MachineError: no interpreter or environment, a server that does not come up, or a
                version below the least one.
            EngineError: a given server has another model.
        """
        engine: HostedEngine = load_object(self.engine)(place, self, sender)
        return engine

    def interpreter(self, place: EnginePlace) -> Path:
        """The interpreter that starts servers."""
        return Path(self.python or place.server_python).expanduser()


def argument_name(name: str) -> str:
    """An argument of a program as its command line has it, without dashes in front."""
    return name.lstrip("-").replace("_", "-")
