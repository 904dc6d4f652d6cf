"""Vision tower: what a model that sees makes of a packed row's images, before its layers read them.

- The tower and its projector attend within each image. An image runs once a micro-batch, however
  often the row shows it.
- A frozen tower runs without gradients. One that is trained runs in every micro-batch that has a
  backward pass, on a blank image whose output counts 0 where the row shows none: every rank then
  has the same gradients to sum.

Shapes: T packed tokens, D width, I images of a row, N their tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from agentrl.engines.torch.model.families import VISION
from agentrl.engines.weights import read_config
from agentrl.errors import ConfigError, DataError
from agentrl.render import Pixels, image_positions, sees_images
from agentrl.training.data.transfer import to_device
from agentrl.training.vision.pixel_store import PixelStore
from agentrl.types.arrays import I64
from agentrl.types.batch import Media

VisionMode = Literal["frozen", "trained"]
"""Whether a tower and its projector move."""

_WHOLE: Mapping[str, object] = {
    "PlacementConfig.tp_size": 1,
    "PlacementConfig.sp_size": 1,
    "TrainConfig.ep_size": 1,
    "TrainConfig.compile": False,
}
"""The values that a model which sees can be trained with."""


def class_and_attention(
    auto: Any, folder: Path, attention: str, mode: VisionMode, named: str
) -> tuple[Any, Any]:
    """The transformers class that loads a folder's model, and how its parts attend.

    Args:
        auto: the class of a model of text of the same kind.
        folder: of the model.
        attention: of a packed row.
        mode: asked of a model that sees.
        named: the setting that names the folder, for errors.

    Raises:
        ConfigError: the family, or what is asked of it, is not supported.
    """
    if not sees_images(folder):
        if mode == "frozen":
            return auto, attention
        raise ConfigError(
            f"TrainConfig.vision={mode!r} moves the tower of a model that sees images, and {named} "
            "reads text alone; leave it out, or choose a model that sees"
        )
    family = read_config(folder).get("model_type")
    if family not in VISION:
        raise ConfigError(
            f"{named} sees images, and of such families {', '.join(VISION)} can be trained, got "
            f"{family!r}; play it with `agentrl rollout` or `agentrl eval`, or choose another"
        )
    if auto is not AutoModelForCausalLM:
        raise ConfigError(
            f"{named} sees images, and a critic or a reward model reads text alone; name a model "
            "of text for it, or choose an algorithm without one"
        )
    # by transformers' own, a patch attends to those of its image alone
    own = attention if attention.startswith("flash") else "sdpa"
    kinds = {"": attention, "text_config": attention, "vision_config": own}
    return AutoModelForImageTextToText, kinds


def check_vision(folder: Path, settings: Mapping[str, object], named: str) -> None:
    """Refuses what does not go with a model that sees, all at once.

    Args:
        folder: of the model, which may read text alone.
        settings: values by name, those of ``_WHOLE``.
        named: the setting that names the folder.

    Raises:
        ConfigError: as said.
    """
    odd = {name: value for name, value in settings.items() if value != _WHOLE[name]}
    if odd and sees_images(folder):
        told = ", ".join(f"{name}={value!r}" for name, value in odd.items())
        raise ConfigError(
            f"{named} sees images, which does not go with {told}; leave that out, or choose a "
            "model of text",
            fields=list(odd),
        )


class VisionTower:
    """The tower of a model.

    Args:
        model: tower, projector and language model, of transformers.
        folder: of the model.
        run_folder: of the run, whose blobs are the images; None has none.
        mode: whether it is trained.

    Attributes:
        pixels: of the run's images.
        module: tower and projector.
        is_trained: whether they move.

    Raises:
        ConfigError: the folder's image processor cuts other patches than the tower reads.
    """

    def __init__(
        self, model: Any, folder: Path, run_folder: str | None, mode: VisionMode
    ) -> None:
        self.pixels = PixelStore(folder, run_folder)
        self.module = model.visual
        self.is_trained = mode == "trained"
        self.module.requires_grad_(self.is_trained)
        self._model = model
        own, processor = self.module.config, self.pixels.processor
        names = {
            "patch_size": own.patch_size,
            "temporal_patch_size": own.temporal_patch_size,
            "merge_size": own.spatial_merge_size,
        }
        for name, value in names.items():
            if getattr(processor, name) != value:
                raise ConfigError(
                    f"{folder / 'preprocessor_config.json'} has {name}="
                    f"{getattr(processor, name)}, and the tower in config.json reads {value}; use "
                    "the files that the model was published with"
                )
        self._merge = int(own.spatial_merge_size)
        self._blank = _blank(own)

    def positions_of(self, size: int, media: Media) -> I64:
        """``[3, size]`` positions of a sample with images, as its family counts them.

        Raises:
            DataError: an image has another number of placeholders than the tower has tokens for it;
                or as ``PixelStore.pixels``.
        """
        shown = []
        for image in _in_order(media):
            _, *grid = self.pixels.grid(str(image["sha256"]))
            height, width = (side // self._merge for side in grid)
            if height * width != image["num_tokens"]:
                raise DataError(
                    f"image {image['sha256']} has {image['num_tokens']} placeholders in the batch, "
                    f"and the model's image processor makes {height * width} tokens of it; "
                    "play and train with one preprocessor_config.json"
                )
            shown.append((int(image["start"]), height, width))
        return image_positions(size, shown)

    def inputs(self, token_ids: Tensor, media: Media) -> dict[str, Any]:
        """What the language model is given of a packed row.

        Args:
            token_ids: ``[T]``.
            media: the row's images.
        """
        embedded: Tensor = self._model.get_input_embeddings()(token_ids)
        if not media.size:
            if self.is_trained and torch.is_grad_enabled():
                levels = self._seen([self._blank], embedded.device)
                embedded = embedded + 0 * sum(level.sum() for level in levels)
            return {"inputs_embeds": embedded[None]}
        media = _in_order(media)
        names, which = np.unique(media["sha256"], return_inverse=True)
        images = [self.pixels.pixels(str(name)) for name in names]
        counts = np.array([np.prod(image.grid) for image in images]) // self._merge**2
        firsts = np.cumsum(counts) - counts
        moved = to_device(
            {
                "places": _ranges(media["start"], counts[which]),
                "sources": _ranges(firsts[which], counts[which]),
            },
            embedded.device,
        )
        levels = self._seen(images, embedded.device)
        first, *deeper = (
            level.index_select(0, moved["sources"]).to(embedded.dtype) for level in levels
        )
        inputs: dict[str, Any] = {
            "inputs_embeds": embedded.index_copy(0, moved["places"], first)[None]
        }
        if deeper:
            shown = torch.zeros(token_ids.shape, dtype=torch.bool, device=embedded.device)
            inputs["visual_pos_masks"] = shown.index_fill(0, moved["places"], True)[None]
            inputs["deepstack_visual_embeds"] = deeper
        return inputs

    def _seen(self, images: list[Pixels], device: torch.device) -> list[Tensor]:
        """``[N, D]`` of images one after the other: what stands in the place of their tokens, and
        what is added to these behind the first layers, where the family does so."""
        with torch.set_grad_enabled(self.is_trained and torch.is_grad_enabled()):
            return _levels(self._model, images, device)


def check_gradients(twin: Any, named: str) -> None:
    """Refuses to train a tower that gradients do not reach.

    Args:
        twin: a small model of the family.
        named: the setting that names the folder.

    Raises:
        ConfigError: as said.
    """
    model = twin.base_model
    names, parameters = zip(*model.visual.named_parameters(), strict=True)
    with torch.enable_grad():
        levels = _levels(model, [_blank(model.visual.config)], torch.device("cpu"))
        joined = torch.cat(
            [*levels, torch.zeros(1, levels[0].shape[1], requires_grad=True)]
        )
        gradients = torch.autograd.grad(joined.sum(), parameters, allow_unused=True)
    missing = [name for name, one in zip(names, gradients, strict=True) if one is None]
    if missing:
        raise ConfigError(
            f"TrainConfig.vision='trained' moves the tower of {named}, and no gradient reaches "
            f"{len(missing)} of its {len(names)} tensors, such as {missing[0]}; leave it frozen"
        )


def _blank(config: Any) -> Pixels:
    """An image of one token, for a tower of this configuration."""
    merge = int(config.spatial_merge_size)
    values = config.in_channels * config.temporal_patch_size * config.patch_size**2
    return Pixels(np.zeros((merge**2, values), np.float32), (1, merge, merge))


def _levels(model: Any, images: list[Pixels], device: torch.device) -> list[Tensor]:
    arrays = {
        "patches": np.concatenate([image.patches for image in images]),
        "grids": np.array([image.grid for image in images]),
    }
    given = to_device(arrays, device)
    found = model.get_image_features(given["patches"], given["grids"], return_dict=True)
    deeper = getattr(found, "deepstack_features", None) or ()
    return [torch.cat(level) for level in (found.pooler_output, *deeper)]


def _in_order(media: Media) -> Media:
    ordered: Media = media[np.argsort(media["start"])]
    return ordered


def _ranges(starts: I64, counts: I64) -> I64:
    """``start … start + count - 1`` of each, one after the other."""
    return np.concatenate(
        [
            np.arange(start, start + count)
            for start, count in zip(starts, counts, strict=True)
        ]
    )
