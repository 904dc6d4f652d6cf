"""State of an engine of servers: what it serves, and who waits for a change. Touched from its own
loop alone.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentrl.engines.held_weights import HeldWeights
from agentrl.engines.life import EngineLife
from agentrl.engines.probe import Probe
from agentrl.engines.servers.client import ServerKind, WeightLabels
from agentrl.engines.weights import tensor_shapes
from agentrl.types import EngineInfo, StaleKV


class ServersState:
    """Written by the engine's loop; its plain values may be read from anywhere.

    Args:
        kind: of the servers.

    Attributes:
        sent: checksums of the weights that were sent last, by the tensors' names; empty before the
            first update.
        held: what the servers were found to hold last, by their own digests.
        probe: logprobs under the version served now, which a server started later must agree with.
        draining: whether servers end what they have before a pause.
        kv: tokens of each session in the servers' caches.
        tasks: what runs in the background until the engine closes.
    """

    def __init__(self, kind: ServerKind) -> None:
        self.kind = kind
        self.life = EngineLife()
        self.labels = WeightLabels(secrets.token_hex(4))
        self.sent: Mapping[str, int] = {}
        self.held: HeldWeights | None = None
        self.probe: Probe | None = None
        self.draining = False
        self.stale_kv: StaleKV = "never"
        self.kv: dict[str, int] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        # requests and starts wait here for any change of state; notified from the engine's loop
        self._changed = asyncio.Condition()

    @functools.cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every tensor of the model, by Hugging Face name.

        Raises:
            DataError: the model's folder cannot be read.
        """
        return tensor_shapes(Path(self.kind.place.model))

    @property
    def names(self) -> set[str]:
        """Tensors that a server may hold; a tied head is the embedding under a second name."""
        return {
            *self.shapes,
            *({"lm_head.weight"} if self.kind.sizes.ties_embeddings else ()),
        }

    @property
    def generates(self) -> bool:
        """Whether servers generate, and so answer ``/health``: in a pause they do not."""
        return self.life.serves or self.draining

    @property
    def flushes_updates(self) -> bool:
        """Whether an update empties the KV caches: not where requests were paused in place, whose
        KV is kept."""
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
            routing=self.kind.routing,
        )

    @property
    def weights_folders(self) -> tuple[str, str]:
        """Where this engine alone may write weights, and the folder as which its servers see it."""
        spec = self.kind.spec
        written = spec.weights_folder or str(
            Path(self.kind.place.folder, "weights").resolve()
        )
        seen = spec.weights_mount or written
        owner = self.labels.owner
        return f"{written.rstrip('/')}/{owner}", f"{seen.rstrip('/')}/{owner}"

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs beside whatever goes on."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def notify(self) -> None:
        """Something changed: everyone who waits looks again."""
        async with self._changed:
            self._changed.notify_all()

    async def wait_changed(self, *, timeout_s: float) -> None:
        """Until something changed, or so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait()
