"""A scripted engine that tells its tokens one by one, as fast as the test lets it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from agentrl.engines.scripted import ScriptedEngine
from agentrl.types import Completion, GenerateRequest, concat_ids
from tests.rollouts.bytewise import MODEL_VOCAB


class SpeakingEngine(ScriptedEngine):
    """Tells each token but the last, and awaits ``pace`` with the number of those told behind each.

    Args:
        script: as for ScriptedEngine.
        pace: awaited between tokens.
        mishear: added to each id that is told.
    """

    def __init__(
        self,
        script: Any,
        pace: Callable[[int], Awaitable[object]] | None = None,
        *,
        mishear: int = 0,
        **settings: Any,
    ) -> None:
        super().__init__(script, **{"vocab_size": MODEL_VOCAB} | settings)
        self._pace = pace
        self._mishear = mishear

    async def generate(self, request: GenerateRequest) -> Completion:
        completion = await super().generate(request)
        ids = concat_ids(completion.segments)
        logprobs = np.concatenate(
            [np.zeros(0, np.float32), *(s.logprobs for s in completion.segments)]
        )  # type: ignore[list-item]
        for n in range(ids.size - 1):
            if request.on_tokens is not None:
                request.on_tokens(ids[n : n + 1] + self._mishear, logprobs[n : n + 1])
            if self._pace is not None:
                await self._pace(n + 1)
        return completion
