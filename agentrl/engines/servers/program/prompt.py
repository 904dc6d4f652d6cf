"""Prompt: a request's ids for a server that makes an image's placeholders itself."""

from __future__ import annotations

import numpy as np

from agentrl.types import GenerateRequest


def single_placeholders(request: GenerateRequest) -> list[int]:
    """The ids with one placeholder for each image, which stands for all of them."""
    kept = np.ones(request.token_ids.size, dtype=np.bool_)
    for span in request.media:
        kept[span.start + 1 : span.start + span.num_tokens] = False
    ids: list[int] = request.token_ids[kept].tolist()
    return ids
