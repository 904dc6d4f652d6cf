"""Token stream: an answer as server-sent events, each with all tokens so far."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np

from agentrl.types import GenerateRequest

_PREFIX = b"data: "
_END = b"\n\n"
_DONE = b"[DONE]"


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of each event. Its bytes are cut at line feeds alone: a text in it may hold any
    other line's end.
    """
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(_END)
        for event in whole:
            data = event.strip().removeprefix(_PREFIX)
            if data and data != _DONE:
                yield data


class TokenStream:
    """Tells who listens to a request what is new in its answer, as long as that grows.

    Args:
        request: one with ``on_tokens``.

    Attributes:
        told: tokens so far.
    """

    def __init__(self, request: GenerateRequest) -> None:
        self.told = 0
        self._request = request

    def __call__(self, answer: Mapping[str, Any]) -> None:
        """An answer of SGLang's; another is left to whoever reads the last one."""
        meta = answer.get("meta_info")
        if not isinstance(meta, Mapping) or meta.get("finish_reason") is not None:
            return
        ids = answer.get("output_ids") or []
        triples = meta.get("output_token_logprobs") or []
        end = min(len(ids), len(triples))
        if end > self.told and self._request.on_tokens is not None:
            logprobs = [triple[0] for triple in triples[self.told : end]]
            self._request.on_tokens(
                np.asarray(ids[self.told : end], np.int32), np.asarray(logprobs, np.float32)
            )
            self.told = end
