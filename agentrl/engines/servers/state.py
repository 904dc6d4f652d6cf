"""State of an engine of servers: what it serves, and who waits for a change. Touched from its own
loop alone.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from agentrl.engines.life import EngineLife
from agentrl.engines.servers.client import ServerKind, WeightLabels
from agentrl.engines.weights import WeightArray
from agentrl.types import EngineInfo, StaleKV


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """Logprobs of a sequence under one version, which a server started later must agree with."""

    version: int
    token_ids: tuple[int, ...]
    logprobs: npt.NDArray[np.float32]


class ServersState:
    """Written by the engine's loop; its plain values may be read from anywhere.

    Args:
        kind: of the servers.
    """

    def __init__(self, kind: ServerKind) -> None:
        self.kind = kind
        self.life = EngineLife()
        self.labels = WeightLabels(secrets.token_hex(4))
        self.weights: Mapping[str, WeightArray] | None = None
        self.score: Score | None = None
        self.stale_kv: StaleKV = "never"
        self.kv: dict[str, int] = {}
        # requests and starts wait here for any change of state; notified from the engine's loop
        self._changed = asyncio.Condition()

    @property
    def flushes_updates(self) -> bool:
        """Whether an update empties the KV caches."""
        return self.life.paused != "in_place"

    def info(self) -> EngineInfo:
        """What a client must know."""
        place = self.kind.place
        return EngineInfo(
            self.kind.spec.section,
            place.model,
            self.kind.sizes.vocab_size,
            place.context_tokens,
            self.life.policy_version,
            grammars=True,
        )

    def weights_folder(self, version: int) -> Path:
        """Where weights of a version may be written."""
        return Path(self.kind.place.folder) / "weights" / f"version-{version:06d}"

    async def notify(self) -> None:
        """Something changed: everyone who waits looks again."""
        async with self._changed:
            self._changed.notify_all()

    async def wait_changed(self, *, timeout_s: float) -> None:
        """Until something changed, or so long."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait()
        except TimeoutError:
            return
