"""Weights as bytes: files that the safetensors library reads, and the digests that a server must answer with."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from agentrl.errors import DataError
from agentrl.rollouts.sglang.digests import differing, unknown_names
from agentrl.rollouts.sglang.weights import WeightArray, array_checksum, open_weights, tensor_shapes, write_weights
from agentrl.types.checksum import tensor_checksum

LAYER = "model.layers.0"
SHAPES = {
    "model.embed_tokens.weight": (65, 4),
    f"{LAYER}.self_attn.q_proj.weight": (8, 4),
    f"{LAYER}.self_attn.k_proj.weight": (4, 4),
    f"{LAYER}.self_attn.v_proj.weight": (4, 4),
    f"{LAYER}.self_attn.q_proj.bias": (8,),
    f"{LAYER}.self_attn.k_proj.bias": (4,),
    f"{LAYER}.self_attn.v_proj.bias": (4,),
    f"{LAYER}.self_attn.o_proj.weight": (4, 8),
    f"{LAYER}.mlp.gate_proj.weight": (6, 4),
    f"{LAYER}.mlp.up_proj.weight": (6, 4),
    f"{LAYER}.mlp.down_proj.weight": (4, 6),
    "model.norm.weight": (4,),
}


@pytest.fixture
def values() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


@pytest.fixture
def arrays(values: dict[str, np.ndarray]) -> dict[str, WeightArray]:
    return {
        name: WeightArray(name, "float32", value.shape, value.reshape(-1).view(np.uint8))
        for name, value in values.items()
    }


def digest(*parts: np.ndarray) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()[:16]


def padded(value: np.ndarray, rows: int) -> np.ndarray:
    return np.concatenate([value, np.zeros((rows - value.shape[0], value.shape[1]), dtype=value.dtype)])


def served(values: dict[str, np.ndarray], rank: int = 0, ranks: int = 1) -> dict[str, str]:
    """What a server has: fused, cut over ranks, the vocabulary padded to 64 rows a multiple."""

    def rows(name: str, of: int = ranks, at: int = rank) -> np.ndarray:
        value = values[f"{LAYER}.{name}"]
        each = value.shape[0] // of
        return value[at * each : (at + 1) * each]

    def columns(name: str) -> np.ndarray:
        value = values[f"{LAYER}.{name}"]
        each = value.shape[1] // ranks
        return value[:, rank * each : (rank + 1) * each]

    vocabulary = padded(values["model.embed_tokens.weight"], 128)
    each = 128 // ranks
    heads = [f"self_attn.{part}_proj" for part in "qkv"]
    return {
        "model.embed_tokens.weight": digest(vocabulary[rank * each : (rank + 1) * each]),
        f"{LAYER}.self_attn.qkv_proj.weight": digest(*(rows(f"{head}.weight") for head in heads)),
        f"{LAYER}.self_attn.qkv_proj.bias": digest(*(rows(f"{head}.bias") for head in heads)),
        f"{LAYER}.self_attn.o_proj.weight": digest(columns("self_attn.o_proj.weight")),
        f"{LAYER}.mlp.gate_up_proj.weight": digest(rows("mlp.gate_proj.weight"), rows("mlp.up_proj.weight")),
        f"{LAYER}.mlp.down_proj.weight": digest(columns("mlp.down_proj.weight")),
        "model.norm.weight": digest(values["model.norm.weight"]),
    }


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_server_with_the_right_weights_has_the_right_digests(
    values: dict[str, np.ndarray], arrays: dict[str, WeightArray], ranks: int
) -> None:
    answer = [served(values, rank, ranks) for rank in range(ranks)]
    assert differing(arrays, answer, num_kv_heads=2) == ([], 7 * ranks)


def test_ranks_beyond_the_kv_heads_share_them(values: dict[str, np.ndarray], arrays: dict[str, WeightArray]) -> None:
    q, k, v = (values[f"{LAYER}.self_attn.{part}_proj.weight"] for part in "qkv")
    answer = [{f"{LAYER}.self_attn.qkv_proj.weight": digest(q[4 * rank : 4 * rank + 4], k, v)} for rank in range(2)]
    assert differing(arrays, answer, num_kv_heads=1) == ([], 2)


def test_one_wrong_bit_is_found(values: dict[str, np.ndarray], arrays: dict[str, WeightArray]) -> None:
    answer = served(values)
    arrays[f"{LAYER}.self_attn.k_proj.weight"].data[3] ^= 1
    assert differing(arrays, [answer], 2)[0] == [f"{LAYER}.self_attn.qkv_proj.weight"]


def test_a_tied_head_is_not_compared(values: dict[str, np.ndarray], arrays: dict[str, WeightArray]) -> None:
    assert differing(arrays, [{**served(values), "lm_head.weight": "0" * 16}], 2) == ([], 7)


def test_a_tensor_of_another_model_is_named(values: dict[str, np.ndarray]) -> None:
    answer = {**served(values), "model.layers.1.mlp.gate_up_proj.weight": "0" * 16}
    assert unknown_names(SHAPES, [answer]) == ["model.layers.1.mlp.gate_up_proj.weight"]


def test_a_written_folder_is_read_by_the_safetensors_library(
    tmp_path: Path, values: dict[str, np.ndarray], arrays: dict[str, WeightArray]
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"old")
    write_weights(tmp_path / "new", model, arrays.values())
    found = load_file(tmp_path / "new" / "model.safetensors")
    assert found.keys() == values.keys()
    assert all(np.array_equal(found[name], value) for name, value in values.items())
    assert (tmp_path / "new" / "config.json").read_text() == "{}"


def test_what_was_written_is_opened_again(tmp_path: Path, arrays: dict[str, WeightArray]) -> None:
    (tmp_path / "model").mkdir()
    write_weights(tmp_path / "new", tmp_path / "model", arrays.values())
    found = open_weights(tmp_path / "new")
    assert {name: array_checksum(array) for name, array in found.items()} == {
        name: array_checksum(array) for name, array in arrays.items()
    }


def test_shapes_are_read_from_the_head_alone(tmp_path: Path, values: dict[str, np.ndarray]) -> None:
    save_file(values, tmp_path / "model.safetensors")
    assert tensor_shapes(tmp_path) == SHAPES


def test_the_checksum_is_the_trainers(values: dict[str, np.ndarray], arrays: dict[str, WeightArray]) -> None:
    name = "model.norm.weight"
    assert array_checksum(arrays[name]) == tensor_checksum(values[name].view(np.uint32))


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no \*\.safetensors"):
        tensor_shapes(tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((1 << 62).to_bytes(8, "little") + b"{")
    with pytest.raises(DataError, match=r"model\.safetensors is no safetensors file"):
        tensor_shapes(tmp_path)
