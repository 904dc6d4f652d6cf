"""A tiny random Qwen2.5-VL or Qwen3-VL in a Hugging Face folder: tokenizer, image processor,
weights; and pictures for it.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from PIL import Image as Pictures

from tests.render.qwen_kind import ORDINARY, SPECIAL, trained_tokenizer

__all__ = [
    "FAMILIES",
    "MARKERS",
    "Family",
    "picture",
    "write_qwen_vl",
    "write_vision_tokenizer",
]

Family = Literal["qwen2_5_vl", "qwen3_vl"]
FAMILIES: tuple[Family, ...] = get_args(Family)

MARKERS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
# SGLang takes patches of another size for images that were seen already
PATCH, MERGE = 14, 2
MIN_PIXELS, MAX_PIXELS = 28 * 28, 16 * 28 * 28
_TOWERS: dict[Family, dict[str, Any]] = {
    "qwen2_5_vl": {
        "spatial_patch_size": PATCH,
        "window_size": 2 * PATCH * MERGE,
        "fullatt_block_indexes": [1],
    },
    "qwen3_vl": {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
}


def picture(
    width: int = 84,
    height: int = 56,
    *,
    seed: int = 0,
    form: str = "PNG",
    mode: str = "RGB",
) -> bytes:
    """An encoded picture of random pixels."""
    channels = len(Pictures.new(mode, (1, 1)).getbands())
    pixels = np.random.default_rng(seed).integers(
        0, 256, (height, width, channels), dtype=np.uint8
    )
    encoded = io.BytesIO()
    Pictures.fromarray(pixels.squeeze(-1) if channels == 1 else pixels, mode=mode).save(
        encoded, form
    )
    return encoded.getvalue()


def write_vision_tokenizer(
    folder: Path, template: str | None = None, family: Family = "qwen2_5_vl"
) -> Any:
    """All of a model that a renderer needs: the tokenizer, its template, and how images are told
    and cut.
    """
    tokenizer = trained_tokenizer(ORDINARY["qwen2_5"], (*SPECIAL, *MARKERS))
    tokenizer.chat_template, tokenizer.pad_token = template, "<|endoftext|>"
    tokenizer.save_pretrained(folder)
    processor = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "merge_size": MERGE,
        "min_pixels": MIN_PIXELS,
        "max_pixels": MAX_PIXELS,
        "image_mean": [0.5, 0.4, 0.45],
        "image_std": [0.25, 0.27, 0.26],
        "processor_class": "Qwen2_5_VLProcessor",
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    ids = tokenizer.get_added_vocab()
    config = {
        "model_type": family,
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    return tokenizer


def write_qwen_vl(
    folder: Path,
    *,
    seed: int = 5,
    template: str | None = None,
    context: int = 512,
    heads: int = 4,
    family: Family = "qwen2_5_vl",
) -> Path:
    """The whole model: two layers of width 64 that read and one of width 32 that sees.

    Returns:
        ``folder``.
    """
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    tokenizer = write_vision_tokenizer(folder, template, family)
    ids = tokenizer.get_added_vocab()
    torch.manual_seed(seed)
    # the time, height and width of each head's frequencies; Qwen3-VL mixes them
    sections = {"qwen2_5_vl": (2, 3, 3), "qwen3_vl": (4, 2, 2)}[family]
    config = AutoConfig.for_model(
        family,
        text_config={
            "vocab_size": 832,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": heads,
            "num_key_value_heads": heads // 2,
            "head_dim": 64 // heads,
            "intermediate_size": 96,
            "max_position_embeddings": context,
            "rope_parameters": {
                "rope_type": "default",
                "mrope_section": [4 * part // heads for part in sections],
                "rope_theta": 10000.0,
            },
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": ids["<|im_end|>"],
            "initializer_range": 0.08,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "out_hidden_size": 64,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
            "initializer_range": 0.08,
            **_TOWERS[family],
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    model = AutoModelForImageTextToText.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # gains of 1 and biases of 0 would hide a missing one
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return folder
