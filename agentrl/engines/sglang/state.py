"""What an engine knows of itself: its model, what it serves, whether it serves. Touched from its own loop alone."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from pathlib import Path

from agentrl.engines.base import PauseMode, Tag
from agentrl.engines.sglang.sglang_spec import SGLangEngineSpec
from agentrl.engines.sglang.weights import WeightArray
from agentrl.errors import EngineError
from agentrl.types import EngineInfo, StaleKV
from agentrl.types.clock import EngineClock

__all__ = ["EngineState"]


class EngineState:
    """Written by the engine's loop; its plain values may be read from anywhere.

    Args:
        spec: the engine's.
    """

    def __init__(self, spec: SGLangEngineSpec) -> None:
        config = spec.read_config()
        text = (
            config.get("text_config") or config
        )  # a model that also sees keeps its language model's sizes there
        self.spec = spec
        self.sees_images = spec.sees_images
        self.vocab_size = int(text["vocab_size"])
        self.num_kv_heads = int(text.get("num_key_value_heads") or text["num_attention_heads"])
        self.ties_embeddings = bool(
            text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))
        )
        self.policy_version = 0
        self.weights: Mapping[str, WeightArray] | None = None
        self.paused: PauseMode | None = None
        self.asleep: set[Tag] = set()
        self.updating = False
        self.fault = ""
        self.closed = False
        self.stale_kv: StaleKV = "never"
        self.kv: dict[str, int] = {}
        self.clock = EngineClock()
        self.owner = secrets.token_hex(4)
        self._changed = asyncio.Condition()

    @property
    def serves(self) -> bool:
        """Whether servers may generate now."""
        return self.paused is None and not self.updating and not self.fault and not self.closed

    @property
    def flushes_updates(self) -> bool:
        """Whether an update empties the KV caches."""
        return self.paused != "in_place"

    def info(self) -> EngineInfo:
        """What a client must know."""
        spec = self.spec
        return EngineInfo(
            "sglang",
            spec.model_path,
            self.vocab_size,
            spec.context_tokens,
            self.policy_version,
            grammars=True,
        )

    def label(self, version: int) -> str:
        """What servers call a policy version: another owner's numbers are never taken for ours."""
        return f"{self.owner}.{version}"

    def version_of(self, label: str) -> int:
        """The policy version that servers call so.

        Raises:
            EngineError: the label is not one of this engine's.
        """
        owner, _, version = label.partition(".")
        if owner != self.owner or not version.isdecimal():
            raise EngineError(
                f"an answer was made by weights called {label!r}, which this engine did not send; "
                "a server must have one owner",
                retryable=False,
            )
        return int(version)

    def weights_folder(self, version: int) -> Path:
        """Where weights of a version may be written."""
        return Path(self.spec.folder) / "weights" / f"version-{version:06d}"

    def require_whole(self, what: str) -> None:
        """Raises an EngineError where the engine was closed or its weights are torn."""
        if self.closed or self.fault:
            raise EngineError(f"{what}: {self.fault or 'the engine was closed'}", retryable=False)

    async def notify(self) -> None:
        """Something changed: whoever waits looks again."""
        async with self._changed:
            self._changed.notify_all()

    async def wait_changed(self, *, timeout_s: float) -> None:
        """Until something changed, or so long."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait()
        except TimeoutError:
            return
