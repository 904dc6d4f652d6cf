"""Images that a TorchEngine serves: ids of their own for their tokens, and features of the tower.

Placeholders of two images are the same tokens of the vocabulary. Here each image's tokens are
negative ids that no other image has: what compares ids (prefixes, siblings, sessions) tells images
apart too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agentrl.errors import DataError, EngineError
from agentrl.render import Pixels, image_positions, load_image_processor, prepare_pixels
from agentrl.types import GenerateRequest, Image

KEPT_TOKENS = 1 << 15
"""Tokens of images that are kept beside those of requests in flight."""

_LAST_ID = 2**31 - 1
_TRIAL_START = 4


@dataclass(slots=True, eq=False, weakref_slot=True)
class ServedImage:
    """One image.

    Args:
        first: its tokens are the ids ``-first``, ``-first - 1``, and so on.
        pixels: for the tower.
        moves: ``[4, tokens]`` how far the position of each token lies from that of text, in three
            planes; and how far what follows it is moved by it, which the last one does.
        features: ``[1 + deepstack, tokens, width]`` of the tower, once they were needed.
    """

    first: int
    pixels: Pixels
    moves: npt.NDArray[np.int64]
    features: Tensor | None = None

    @property
    def size(self) -> int:
        """Its tokens."""
        return int(self.moves.shape[1])


@dataclass(frozen=True, slots=True)
class FoundImages:
    """Images in a chunk of tokens ``[n, T]``.

    Args:
        mask: ``[n, T]`` where they are.
        features: ``[1 + deepstack, tokens, width]`` of these, in order.
        moves, shifts: ``[3, n, T]`` and ``[n, T]``, see ``ServedImage.moves``.
    """

    mask: Tensor
    features: Tensor
    moves: Tensor
    shifts: Tensor


class ServedImages:
    """Images by their hash, those of requests in flight and the last ``KEPT_TOKENS`` tokens'.

    Everything but ``mark`` of a request runs in the model's forward; all on the engine's thread.

    Args:
        module: of transformers, of a family in ``families.VISION``.
        folder: of the model, with the settings of its image processor.

    Raises:
        DataError: the folder has no image processor.
    """

    def __init__(self, module: Any, folder: Path) -> None:
        self._module = module
        self._processor = load_image_processor(folder)
        self._next = 1
        self._alive: WeakValueDictionary[str, ServedImage] = WeakValueDictionary()
        # in order of their last use
        self._kept: dict[str, ServedImage] = {}

    def mark(
        self, ids: npt.NDArray[np.int32], request: GenerateRequest
    ) -> list[ServedImage]:
        """Writes the images' own ids over the placeholders in ``ids``, a request's; they are served
        as long as the images live.

        Raises:
            EngineError: an image cannot be read, or does not fit its placeholders.
        """
        placeholder = self._module.config.image_token_id
        images = []
        for span, image in zip(request.media, request.images, strict=True):
            try:
                served = self._serve(image)
            except (DataError, OSError) as error:
                raise EngineError(
                    f"request {request.request_id!r}: {image} cannot be read: {error}",
                    retryable=False,
                ) from error
            own = ids[span.start : span.start + span.num_tokens]
            if own.size != served.size or (own != placeholder).any():
                raise EngineError(
                    f"request {request.request_id!r}: {image} is {served.size} tokens of "
                    f"image_token_id={placeholder}, got {np.count_nonzero(own == placeholder)} in "
                    f"media's {span.num_tokens} from {span.start} on; render with the tokenizer "
                    "and the preprocessor_config.json of the model that is served",
                    retryable=False,
                )
            own[:] = -np.arange(served.first, served.first + served.size)
            images.append(served)
        if stray := np.flatnonzero(ids == placeholder).tolist():
            raise EngineError(
                f"request {request.request_id!r}: token_ids have image_token_id={placeholder} at "
                f"{stray[0]}, where media names no image, {len(stray)} in all; name each image's "
                "placeholders in media",
                retryable=False,
            )
        return images

    def renew(self) -> None:
        """The weights have changed: the tower is to look again."""
        for image in self._alive.values():
            image.features = None

    def find(self, tokens: Tensor) -> FoundImages | None:
        """The images in a chunk ``[n, T]``; None where all is text."""
        mask = tokens < 0
        if not mask.any():
            return None
        own = -tokens[mask].cpu().numpy()
        images = sorted(self._alive.values(), key=lambda image: image.first)
        which = np.searchsorted([image.first for image in images], own, "right") - 1
        used, which = np.unique(which, return_inverse=True)
        images = [images[number] for number in used.tolist()]
        # where the first token of each would be among all of theirs, if that had id 0
        starts = np.cumsum([0, *(image.size for image in images[:-1])])
        starts -= [image.first for image in images]
        places = starts[which] + own
        moves = np.concatenate([image.moves for image in images], 1)[:, places]
        spread = torch.zeros((4, *tokens.shape), dtype=torch.int64, device=tokens.device)
        spread[:, mask] = torch.from_numpy(moves).to(tokens.device)
        features = torch.cat([self._features(image) for image in images], 1)[:, places]
        return FoundImages(mask, features, spread[:3], spread[3])

    def trial(self, ids: Tensor) -> tuple[Tensor, dict[str, Tensor], ServedImage]:
        """A sequence with an image in its midst: its ids here, what the model alone takes for them,
        and the image, served as long as it lives.

        Args:
            ids: of text, some of which become the image's.
        """
        config = self._module.config.vision_config
        merge = config.spatial_merge_size
        grid = (1, 2 * merge, 3 * merge)
        width = config.in_channels * config.temporal_patch_size * config.patch_size**2
        drawn = np.random.default_rng(0).standard_normal(
            (math.prod(grid), width), np.float32
        )
        image = self._alive["trial"] = self._new(Pixels(drawn, grid))
        ids = ids.masked_fill(ids == self._module.config.image_token_id, 0)
        place = slice(_TRIAL_START, _TRIAL_START + image.size)
        own, alone = ids.clone(), ids.clone()
        own[place] = -torch.arange(image.first, image.first + image.size, device=ids.device)
        alone[place] = self._module.config.image_token_id
        kinds = (own < 0).int()
        given = {"input_ids": alone[None], "mm_token_type_ids": kinds[None]}
        return own, given | self._seen(image), image

    def _serve(self, image: Image) -> ServedImage:
        served = self._kept.pop(image.sha256, None) or self._alive.get(image.sha256)
        if served is None:
            served = self._new(prepare_pixels(self._processor, image))
        self._kept[image.sha256] = self._alive[image.sha256] = served
        kept = sum(one.size for one in self._kept.values())
        while kept > KEPT_TOKENS:
            kept -= self._kept.pop(next(iter(self._kept))).size
        return served

    def _new(self, pixels: Pixels) -> ServedImage:
        merge = self._module.config.vision_config.spatial_merge_size
        _, height, width = (side // merge for side in pixels.grid)
        size = height * width
        moves = image_positions(size + 1, [(0, height, width)]) - np.arange(size + 1)
        behind = np.where(np.arange(size) == size - 1, moves[0, -1], 0)
        if self._next + size > _LAST_ID:
            # no row remembers the first ones
            self._next = 1
        first = self._next
        self._next += size
        return ServedImage(first, pixels, np.vstack([moves[:, :-1], behind]))

    def _seen(self, image: ServedImage) -> dict[str, Tensor]:
        device = self._module.device
        return {
            "pixel_values": torch.from_numpy(image.pixels.patches).to(device),
            "image_grid_thw": torch.tensor([image.pixels.grid], device=device),
        }

    def _features(self, image: ServedImage) -> Tensor:
        if image.features is None:
            seen = self._module.get_image_features(**self._seen(image))
            levels = [seen.pooler_output, *getattr(seen, "deepstack_features", ())]
            image.features = torch.stack([level[0] for level in levels])
        return image.features
