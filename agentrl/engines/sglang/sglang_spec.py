"""The picklable description of an SGLangEngine: which servers, how they are started, how weights reach them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agentrl.errors import ConfigError, DataError

if TYPE_CHECKING:
    from agentrl.engines.sglang.engine import SGLangEngine
    from agentrl.engines.sglang.update import WeightSender

__all__ = ["SGLangEngineSpec"]

_OWN_ARGUMENTS = (
    "model-path",
    "host",
    "port",
    "dtype",
    "context-length",
    "weight-version",
    "skip-tokenizer-init",
    "tp-size",
    "max-running-requests",
    "mem-fraction-static",
    "page-size",
    "max-total-tokens",
    "preferred-sampling-params",
)


@dataclass(frozen=True, slots=True)
class SGLangEngineSpec:
    """How to build an SGLangEngine, wherever its clients live.

    Args:
        model_path: a Hugging Face folder: what servers are started with, and what given servers must serve.
        folder: where logs and weights of the servers go; made where missing.
        python: interpreter of the servers' environment; unused with ``urls`` or ``command``.
        command: starts a server instead of ``python``, with the arguments of ``sglang.launch_server`` that follow it,
            and ends with it; it needs ``device``, since it cannot be asked.
        urls: servers that run already and belong to someone else: they are never started or ended.
        num_engines: servers to start.
        dtype: of the weights.
        context_tokens: the longest sequence, prompt and completion together.
        tp_size, max_running_requests, kv_memory_fraction, page_size, kv_tokens: of each server; None leaves SGLang's.
        server_args: further arguments of ``sglang.launch_server`` by their names without dashes in front; true is a
            flag, false and null leave it out, a list is repeated words.
        env: further environment variables of the servers.
        device: ``cpu``, ``cuda``, or None: what the servers' environment offers.
        stop_strings: whether requests may have stop strings, for which a server must load the tokenizer.
        sender: makes what brings an update's tensors to the servers; None for an engine whose weights never change.
        startup_timeout_s: until a server must be ready.
        call_timeout_s: of a call that neither generates nor moves weights.
        update_timeout_s: of a call that moves weights.
        unavailable_s: how long a request waits for a server when none serves.
        health_interval_s: between looks at each server.
        max_restarts: of one server, until it is given up.
        api_key: of servers that ask for one.

    Raises:
        ConfigError: a value outside its range, named.
    """

    model_path: str
    folder: str
    python: str | None = None
    command: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    num_engines: int = 1
    dtype: Literal["float32", "bfloat16"] = "float32"
    context_tokens: int = 1024
    tp_size: int = 1
    max_running_requests: int | None = None
    kv_memory_fraction: float | None = None
    page_size: int | None = None
    kv_tokens: int | None = None
    server_args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    device: Literal["cpu", "cuda"] | None = None
    stop_strings: bool = False
    sender: Callable[[], WeightSender] | None = None
    startup_timeout_s: float = 600.0
    call_timeout_s: float = 60.0
    update_timeout_s: float = 600.0
    unavailable_s: float = 60.0
    health_interval_s: float = 10.0
    max_restarts: int = 3
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.urls and self.num_engines not in (1, len(self.urls)):
            raise ConfigError(
                f"rollout.num_engines must be the number of rollout.sglang.urls, {len(self.urls)}, or left out, got "
                f"{self.num_engines}; given servers are not started"
            )
        if self.num_engines < 1:
            raise ConfigError(
                f"rollout.num_engines must be at least 1, got {self.num_engines}; raise it"
            )
        if self.command and self.device is None:
            raise ConfigError(
                f"rollout.sglang.command={list(self.command)} needs rollout.sglang.device, 'cpu' or 'cuda', since it "
                "cannot be asked what it starts a server on; set it"
            )
        for name in self.server_args:
            bare = name.lstrip("-").replace("_", "-")
            if bare in _OWN_ARGUMENTS:
                raise ConfigError(
                    f"rollout.sglang.server_args must not have {name!r}, which agentrl sets itself; use the setting "
                    "of that meaning (docs/sglang.md)"
                )

    def read_config(self) -> Mapping[str, Any]:
        """The model's ``config.json``.

        Raises:
            DataError: there is none.
        """
        path = Path(self.model_path) / "config.json"
        try:
            config: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(
                f"model.path must be a Hugging Face folder, {path} cannot be read: {error}"
            ) from error
        return config

    @property
    def sees_images(self) -> bool:
        """Whether the model takes images beside text.

        Raises:
            DataError: its ``config.json`` cannot be read.
        """
        return "vision_config" in self.read_config()

    def build(self) -> SGLangEngine:
        """Starts the servers, or looks at those given, and waits until all serve.

        Raises:
            MachineError: no interpreter or environment, a server that does not come up, or an unknown version.
            EngineError: a given server has another model.
        """
        from agentrl.engines.sglang.engine import SGLangEngine

        return SGLangEngine(self)
