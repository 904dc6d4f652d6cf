"""Requests with pictures, and what transformers' own forward says of their completions."""

from __future__ import annotations

import io
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as Pictures

from agentrl.render import RendererSpec, load_image_processor
from agentrl.types import (
    GenerateRequest,
    Image,
    Message,
    SamplingParams,
    Trajectory,
    concat_ids,
    concat_media,
    with_images,
)


def asked(folder: Path, name: str, *parts: str | bytes, **sampling: Any) -> GenerateRequest:
    """A request whose prompt is one user's message."""
    content = [
        {"type": "text", "text": p} if isinstance(p, str) else {"type": "image", "image": p}
        for p in parts
    ]
    message: Message = {"role": "user", "content": content}
    segments = (
        RendererSpec(str(folder), chat_template="chatml")
        .build()
        .prompt(with_images([message]))
    )
    images = tuple(Image.read(part) for part in parts if isinstance(part, bytes))
    chosen = SamplingParams(**{"max_new_tokens": 16} | sampling)
    return GenerateRequest(
        name,
        name,
        concat_ids(segments),
        chosen,
        seed=0,
        media=concat_media(segments),
        images=images,
    )


def assert_own_logprobs(
    reference: Any,
    folder: Path,
    request: GenerateRequest,
    sampled: list[int],
    recorded: np.ndarray,
) -> None:
    """The recorded logprobs are those of transformers' own forward.

    They are compared up to an image's token that the policy sampled by chance: it ends an
    episode, and the reference takes none without an image.
    """
    images = {reference.config.image_token_id, reference.config.video_token_id}
    known = list(takewhile(lambda token: token not in images, sampled))
    np.testing.assert_allclose(
        recorded[: len(known)], own_logprobs(reference, folder, request, known), atol=1e-4
    )


def own_logprobs(
    reference: Any, folder: Path, request: GenerateRequest, ids: list[int]
) -> np.ndarray:
    """log p of each of ``ids`` after the request, by transformers' own forward."""
    table = own_table(reference, folder, request, ids)
    return np.array([float(row[token]) for row, token in zip(table, ids, strict=True)])


def own_table(
    reference: Any, folder: Path, request: GenerateRequest, ids: list[int]
) -> torch.Tensor:
    """``[n, V]`` log p of every token in the place of each of ``ids``, likewise."""
    pictures = [Pictures.open(io.BytesIO(image.bytes())) for image in request.images]
    seen = (
        load_image_processor(folder)(images=pictures, return_tensors="pt")
        if pictures
        else {}
    )
    sequence = torch.tensor([[*request.token_ids.tolist(), *ids]])
    kinds = (sequence == reference.config.image_token_id).int()
    with torch.no_grad():
        table = (
            reference(input_ids=sequence, mm_token_type_ids=kinds, **seen)
            .logits[0]
            .log_softmax(-1)
        )
    own: torch.Tensor = table[request.token_ids.size - 1 : -1]
    return own


def check_logprobs(
    trajectory: Trajectory, images: Mapping[str, Image], reference: Any, folder: Path
) -> None:
    """Every turn's recorded logprobs are the model's own.

    Args:
        trajectory: played.
        images: those of the trajectory by their hash, with their bytes.
        reference: the model in transformers.
        folder: of the model.
    """
    for turn in trajectory.turns:
        ids = trajectory.sequence(turn.index)
        sampled = [int(i) for s in turn.completion for i in s.token_ids]
        segments = [
            s
            for index in trajectory.path(turn.index)
            for s in trajectory.turns[index].segments
        ]
        media = concat_media(segments)
        given = GenerateRequest(
            "r",
            "r",
            ids[: ids.size - len(sampled)],
            SamplingParams(1),
            seed=0,
            media=media,
            images=tuple(images[span.sha256] for span in media),
        )
        recorded = np.concatenate(
            [s.logprobs for s in turn.completion if s.logprobs is not None]
        )
        assert_own_logprobs(reference, folder, given, sampled, recorded)
