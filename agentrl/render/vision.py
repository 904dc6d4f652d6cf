"""Vision: how a model is shown an image: placeholder tokens, pixels, and positions in planes."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.errors import DataError
from agentrl.types import Image, MediaSpan
from agentrl.types.arrays import I32, Bools

IMAGE_TEXT = "<|vision_start|><|image_pad|><|vision_end|>"
"""The text for one image in the templates of Qwen's vision models."""

KNOWN_MODELS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
_PLACEHOLDER = "<|image_pad|>"


@dataclass(frozen=True, slots=True)
class Vision:
    """The image format of one model.

    Args:
        placeholder_id: the token for a part of an image; a template writes it once an image.
        reserved_ids: tokens that only images and videos consist of. No engine could tell a sampled
            one from an image.
        processor: the model's image processor, of Hugging Face.
        patches_per_token: patches that are merged into one token.
    """

    placeholder_id: int
    reserved_ids: frozenset[int]
    processor: Any
    patches_per_token: int

    def num_tokens(self, image: Image) -> int:
        """The placeholders of an image: its patches after resizing, merged.

        Raises:
            DataError: the processor refuses its shape, or its settings cut it to nothing.
        """
        try:
            patches = int(
                self.processor.get_number_of_image_patches(image.height, image.width)
            )
        except ValueError as error:
            raise DataError(
                f"{image} cannot be shown to the model: {error}; crop it"
            ) from error
        except ZeroDivisionError:
            patches = 0
        if not patches:
            raise DataError(
                f"{image} becomes no token by min_pixels and max_pixels in preprocessor_config.json"
                "; enlarge it, or use the file that the model was published with"
            )
        return patches // self.patches_per_token

    def expand(
        self, ids: I32, content: Bools, images: Sequence[Image]
    ) -> tuple[I32, Bools, tuple[MediaSpan, ...]]:
        """Repeats each placeholder by its image's number of tokens; those are content.

        Args:
            ids: ``[n]`` as encoded, one placeholder an image.
            content: ``[n]`` whether each token covers content.
            images: in their order.

        Returns:
            Both arrays ``[m]``, and the spans of the images.

        Raises:
            DataError: there are more or fewer placeholders than images.
        """
        places = np.flatnonzero(ids == self.placeholder_id)
        if places.size != len(images):
            raise DataError(
                f"the chat template writes {places.size} placeholders for {len(images)} images; "
                "set RendererSpec.chat_template: chatml, or to one that writes each image of a "
                "message once"
            )
        counts = [self.num_tokens(image) for image in images]
        repeats = np.ones(ids.size, dtype=np.int64)
        repeats[places] = counts
        content = content.copy()
        content[places] = True
        starts = np.cumsum(repeats)[places] - repeats[places]
        spans = tuple(
            MediaSpan(int(start), count, image.sha256, "image")
            for start, count, image in zip(starts, counts, images, strict=True)
        )
        return np.repeat(ids, repeats), np.repeat(content, repeats), spans


@dataclass(frozen=True, slots=True)
class Pixels:
    """An image as a model's tower reads it.

    Args:
        patches: ``[patches, values of one]`` float32, in the tower's order.
        grid: time (1), height and width of the image, in patches.
    """

    patches: npt.NDArray[np.float32]
    grid: tuple[int, int, int]


def prepare_pixels(processor: Any, image: Image) -> Pixels:
    """Cuts an image for a model's tower.

    Args:
        processor: of ``load_image_processor``.
        image: with its bytes.

    Raises:
        DataError: the processor refuses its shape, or the bytes are not at hand.
    """
    from PIL import Image as Pictures

    with Pictures.open(io.BytesIO(image.bytes())) as picture:
        try:
            made = processor(images=[picture.convert("RGB")], return_tensors="np")
        except ValueError as error:
            raise DataError(
                f"{image} cannot be shown to the model: {error}; crop it"
            ) from error
    time, height, width = made["image_grid_thw"][0].tolist()
    return Pixels(
        np.ascontiguousarray(made["pixel_values"], np.float32), (time, height, width)
    )


def image_positions(
    size: int, images: Iterable[tuple[int, int, int]], first: int = 0
) -> npt.NDArray[np.int64]:
    """``[3, size]`` positions in time, height and width of the families in ``KNOWN_MODELS``.

    Text counts in all planes alike. An image stands at one time; its rows and columns count from
    there, and what follows it goes on behind the longer of them (Qwen2-VL, arXiv:2409.12191, sec.
    2.1).

    Args:
        size: tokens.
        images: by their start, of each: its start, and its rows and columns of tokens.
        first: position of the first token.
    """
    planes = np.empty((3, size), np.int64)
    done, at = 0, first
    for start, height, width in images:
        planes[:, done:start] = at + np.arange(start - done)
        at += start - done
        done = start + height * width
        own = planes[:, start:done]
        own[0] = at
        own[1:] = at + np.indices((height, width)).reshape(2, -1)
        at += max(height, width)
    planes[:, done:] = at + np.arange(size - done)
    return planes


def read_vision(folder: Path, tokenizer: Any) -> Vision | None:
    """The image format of the model in ``folder``; None for a model of text alone or of an unknown
    type.

    Raises:
        DataError: the model takes images, and a file or a marker for them is missing.
    """
    config = _config(folder)
    if config.get("model_type") not in KNOWN_MODELS:
        return None
    added: Mapping[str, int] = tokenizer.get_added_vocab()
    placeholder = config.get("image_token_id")
    if placeholder is None or added.get(_PLACEHOLDER) != placeholder:
        raise DataError(
            f"RendererSpec.model: {folder} sees images by image_token_id={placeholder}, and its "
            f"tokenizer has {_PLACEHOLDER} as {added.get(_PLACEHOLDER)}; use the tokenizer that "
            "the model was published with"
        )
    processor = load_image_processor(folder)
    reserved = (placeholder, config.get("video_token_id"))
    merged = int(processor.merge_size) ** 2
    return Vision(
        int(placeholder),
        frozenset(int(i) for i in reserved if i is not None),
        processor,
        merged,
    )


def sees_images(folder: Path) -> bool:
    """Whether the model in ``folder`` takes images, of a known type or not.

    Raises:
        DataError: its ``config.json`` cannot be read.
    """
    return "vision_config" in _config(folder)


def load_image_processor(folder: Path) -> Any:
    """The image processor of a model's folder, on PIL, as in the servers that are started here.

    Raises:
        DataError: the folder has none.
    """
    from transformers import AutoImageProcessor

    try:
        return AutoImageProcessor.from_pretrained(
            folder, local_files_only=True, backend="pil"
        )
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"RendererSpec.model: the image processor in {folder} cannot be read ({error}); copy "
            f"preprocessor_config.json of the model there"
        ) from error


def _config(folder: Path) -> Mapping[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        # The folder may hold a tokenizer alone.
        return {}
    except (OSError, ValueError) as error:
        raise DataError(
            f"RendererSpec.model: {folder / 'config.json'} cannot be read: {error}"
        ) from error
    return config if isinstance(config, Mapping) else {}
