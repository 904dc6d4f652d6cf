"""A model's file that is cut is refused by its name; a whole one loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.errors import DataError
from agentrl.training.models.packed_model import ModelSpec
from tests.training.harness import write_model
from tests.whole_models import load_policy


@pytest.mark.parametrize("kept", [-1, -1000, 200, 4, 0], ids=str)
def test_a_cut_file_is_named(tmp_path: Path, kept: int) -> None:
    path = write_model(tmp_path) / "model.safetensors"
    load_policy(ModelSpec(str(tmp_path)))
    whole = path.read_bytes()
    path.write_bytes(whole[:kept])
    size = path.stat().st_size
    with pytest.raises(
        DataError, match=rf"model\.safetensors is cut .* it has {size} bytes;"
    ):
        load_policy(ModelSpec(str(tmp_path)))
    path.write_bytes(whole)
    load_policy(ModelSpec(str(tmp_path)))


def test_a_header_that_is_no_header_is_named(tmp_path: Path) -> None:
    path = write_model(tmp_path) / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[8:12] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    with pytest.raises(
        DataError, match=r"model\.safetensors is cut or no safetensors file"
    ):
        load_policy(ModelSpec(str(tmp_path)))
