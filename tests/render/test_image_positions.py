"""Pixels and positions of images are those of transformers' own processor and families."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from agentrl.errors import DataError
from agentrl.render.vision import image_positions, load_image_processor, prepare_pixels
from agentrl.types import Image
from tests.tiny_vision import FAMILIES, MERGE, picture, write_qwen_vl

SIZES = ((84, 56), (28, 28), (28, 84))


@pytest.fixture(scope="module", params=FAMILIES)
def folder(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Path:
    return write_qwen_vl(tmp_path_factory.mktemp("vl"), family=request.param)


def test_positions_are_those_of_the_family(folder: Path) -> None:
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(folder)
    processor = load_image_processor(folder)
    ids: list[int] = [5, 6, 7]
    grids, images = [], []
    for width, height in SIZES:
        made = prepare_pixels(processor, Image.read(picture(width, height)))
        rows, columns = made.grid[1] // MERGE, made.grid[2] // MERGE
        grids.append(made.grid)
        ids.append(model.config.vision_start_token_id)
        images.append((len(ids), rows, columns))
        ids += [model.config.image_token_id] * (rows * columns) + [8, 9]
    told = torch.tensor([ids])
    expected, _ = model.model.get_rope_index(
        told,
        mm_token_type_ids=(told == model.config.image_token_id).int(),
        image_grid_thw=torch.tensor(grids),
    )
    assert image_positions(len(ids), images).tolist() == expected[:, 0].tolist()


def test_positions_go_on_from_the_first() -> None:
    whole = image_positions(9, [(2, 2, 2)], first=10)
    by_hand = [10, 11, 12, 12, 12, 12, 14, 15, 16]
    assert whole[0].tolist() == by_hand
    assert whole[1].tolist() == [10, 11, 12, 12, 13, 13, 14, 15, 16]
    assert whole[2].tolist() == [10, 11, 12, 13, 12, 13, 14, 15, 16]


def test_pixels_are_the_processors(folder: Path) -> None:
    image = Image.read(picture(84, 56))
    made = prepare_pixels(load_image_processor(folder), image)
    assert made.grid == (1, 4, 6)
    assert made.patches.shape == (24, 3 * 2 * 14 * 14)
    assert made.patches.dtype == np.float32


def test_an_image_of_another_shape_than_the_processor_takes_is_named(folder: Path) -> None:
    with pytest.raises(DataError, match="cannot be shown to the model"):
        prepare_pixels(load_image_processor(folder), Image.read(picture(28, 28 * 300)))
