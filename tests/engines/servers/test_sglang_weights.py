"""Weights as bytes: files that the safetensors library reads, and the digests that a server must
answer with.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch_file

from agentrl.engines.weights import (
    ServedDtype,
    WeightArray,
    model_files,
    open_weights,
    read_config,
    tensor_shapes,
    write_weights,
)
from agentrl.errors import DataError
from tests.engines.sglang.digests import differing
from tests.tiny_models import write_family

LAYER = "model.layers.0"
CONFIG = {"num_key_value_heads": 2}
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
    return {
        name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()
    }


@pytest.fixture
def arrays(values: dict[str, np.ndarray]) -> dict[str, WeightArray]:
    return {
        name: WeightArray(name, "float32", value.shape, value.reshape(-1).view(np.uint8))
        for name, value in values.items()
    }


def digest(*parts: np.ndarray) -> str:
    return hashlib.sha256(
        b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
    ).hexdigest()[:16]


def padded(value: np.ndarray, rows: int) -> np.ndarray:
    return np.concatenate(
        [value, np.zeros((rows - value.shape[0], *value.shape[1:]), dtype=value.dtype)]
    )


def served(values: dict[str, np.ndarray], rank: int = 0, ranks: int = 1) -> dict[str, str]:
    """What a server has: fused, cut over ranks, the vocabulary padded to 64 rows a multiple, the
    MLP to 32 a rank.
    """

    def rows(name: str) -> np.ndarray:
        value = values[f"{LAYER}.{name}"]
        each = value.shape[0] // ranks
        return value[at(each)]

    def wide(name: str) -> np.ndarray:
        return padded(values[f"{LAYER}.mlp.{name}"], 32 * ranks)[at(32)]

    def at(each: int) -> slice:
        return slice(rank * each, (rank + 1) * each)

    heads = [f"self_attn.{part}_proj" for part in "qkv"]
    down = padded(values[f"{LAYER}.mlp.down_proj.weight"].T, 32 * ranks)
    return {
        "model.embed_tokens.weight": digest(
            padded(values["model.embed_tokens.weight"], 128)[at(128 // ranks)]
        ),
        f"{LAYER}.self_attn.qkv_proj.weight": digest(
            *(rows(f"{head}.weight") for head in heads)
        ),
        f"{LAYER}.self_attn.qkv_proj.bias": digest(
            *(rows(f"{head}.bias") for head in heads)
        ),
        f"{LAYER}.self_attn.o_proj.weight": digest(
            values[f"{LAYER}.self_attn.o_proj.weight"][:, at(8 // ranks)]
        ),
        f"{LAYER}.mlp.gate_up_proj.weight": digest(
            wide("gate_proj.weight"), wide("up_proj.weight")
        ),
        f"{LAYER}.mlp.down_proj.weight": digest(down[at(32)].T),
        "model.norm.weight": digest(values["model.norm.weight"]),
    }


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_server_with_the_right_weights_has_the_right_digests(
    values: dict[str, np.ndarray], arrays: dict[str, WeightArray], ranks: int
) -> None:
    answer = [served(values, rank, ranks) for rank in range(ranks)]
    assert differing(arrays, answer, CONFIG) == ([], 7 * ranks)


def test_ranks_beyond_the_kv_heads_hold_zeros(
    values: dict[str, np.ndarray], arrays: dict[str, WeightArray]
) -> None:
    qkv = [values[f"{LAYER}.self_attn.{part}_proj.weight"] for part in "qkv"]
    name = f"{LAYER}.self_attn.qkv_proj.weight"
    answer = [{name: digest(*qkv)}, {name: digest(*(np.zeros_like(part) for part in qkv))}]
    assert differing(arrays, answer, {"num_key_value_heads": 1}) == ([], 2)


def test_a_vocabulary_is_padded_until_the_ranks_can_share_it(
    values: dict[str, np.ndarray], arrays: dict[str, WeightArray]
) -> None:
    name = "model.embed_tokens.weight"  # 65 rows: 128 do not go into 3 ranks, 192 do
    answer = [
        {name: digest(padded(values[name], 192)[64 * rank : 64 * rank + 64])}
        for rank in range(3)
    ]
    assert differing(arrays, answer, CONFIG) == ([], 3)


def test_one_wrong_bit_is_found(
    values: dict[str, np.ndarray], arrays: dict[str, WeightArray]
) -> None:
    answer = served(values)
    arrays[f"{LAYER}.self_attn.k_proj.weight"].data[3] ^= 1
    assert differing(arrays, [answer], CONFIG)[0] == [f"{LAYER}.self_attn.qkv_proj.weight"]


def test_a_tied_head_is_not_compared(
    values: dict[str, np.ndarray], arrays: dict[str, WeightArray]
) -> None:
    assert differing(arrays, [{**served(values), "lm_head.weight": "0" * 16}], CONFIG) == (
        [],
        7,
    )


@pytest.mark.parametrize(
    ("family", "mixture", "layers", "count"),
    [
        ("qwen3_moe", "mlp", ("gate_proj", "up_proj", "down_proj"), 3),
        ("mixtral", "block_sparse_moe", ("w1", "w3", "w2"), 3),
        ("deepseek_v3", "mlp", ("gate_proj", "up_proj", "down_proj"), 4),
    ],
)
def test_a_stack_of_experts_is_the_folders_tensors_of_each(
    tmp_path: Path, family: str, mixture: str, layers: tuple[str, str, str], count: int
) -> None:
    prefix = f"model.layers.1.{mixture}.experts"
    folder = write_family(
        tmp_path / "model", family, vocab_size=65, moe_intermediate_size=32
    )
    values = load_file(folder / "model.safetensors")
    found = {
        name: WeightArray(name, "float32", value.shape, value.reshape(-1).view(np.uint8))
        for name, value in values.items()
    }
    gate, up, down = (
        [values[f"{prefix}.{number}.{layer}.weight"] for number in range(count)]
        for layer in layers
    )
    both = [one for pair in zip(gate, up, strict=True) for one in pair]
    answer = {
        f"{prefix}.w13_weight": digest(*both),
        f"{prefix}.w2_weight": digest(*down),
    }
    config = read_config(folder)
    assert differing(found, [answer], config) == ([], 2)
    found[f"{prefix}.2.{layers[1]}.weight"].data[3] ^= 1
    assert differing(found, [answer], config)[0] == [f"{prefix}.w13_weight"]


def test_a_written_file_is_read_by_the_safetensors_library(
    tmp_path: Path, values: dict[str, np.ndarray], arrays: dict[str, WeightArray]
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    with (model / "model.safetensors").open("wb") as file:
        write_weights(file, list(arrays.values()))
    found = load_file(model / "model.safetensors")
    assert found.keys() == values.keys()
    assert all(np.array_equal(found[name], value) for name, value in values.items())
    assert model_files(model) == [model / "config.json"]


def test_what_was_written_is_opened_again(
    tmp_path: Path, arrays: dict[str, WeightArray]
) -> None:
    values = list(arrays.values())
    for place, part in enumerate((values[:3], values[3:])):
        with (tmp_path / f"model-{place}.safetensors").open("wb") as file:
            write_weights(file, part)
    found = open_weights(tmp_path, "float32")
    assert {name: (one.shape, one.data.tobytes()) for name, one in found.items()} == {
        name: (one.shape, one.data.tobytes()) for name, one in arrays.items()
    }


@pytest.mark.parametrize(
    ("saved", "served_as"),
    [("bfloat16", "float32"), ("float16", "float32"), ("float32", "bfloat16")],
)
def test_a_folder_of_another_dtype_is_opened_as_the_servers_load_it(
    tmp_path: Path, saved: str, served_as: ServedDtype
) -> None:
    value = torch.randn(40, 50, generator=torch.Generator().manual_seed(2)).to(
        getattr(torch, saved)
    )
    save_torch_file({"w": value}, tmp_path / "model.safetensors")
    wanted = value.to(getattr(torch, served_as)).view(torch.uint8).numpy()
    assert open_weights(tmp_path, served_as)["w"].data.tobytes() == wanted.tobytes()


def test_what_is_no_number_stays_none(tmp_path: Path) -> None:
    bits = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x7F800000, 0x7FC00000], np.uint32)
    save_file({"w": bits.view(np.float32)}, tmp_path / "model.safetensors")
    served = open_weights(tmp_path, "bfloat16")["w"].data.view(np.uint16)
    found = (served.astype(np.uint32) << 16).view(np.float32)
    assert np.isnan(found).tolist() == [True, True, True, False, True]
    assert found[3] == np.inf


def test_a_folder_of_a_dtype_that_servers_do_not_load_is_named(tmp_path: Path) -> None:
    save_file({"w": np.arange(3)}, tmp_path / "model.safetensors")
    with pytest.raises(
        DataError, match=r"tensor 'w' has dtype I64; servers are given BF16, F16 or F32"
    ):
        open_weights(tmp_path, "float32")


def test_shapes_are_read_from_the_head_alone(
    tmp_path: Path, values: dict[str, np.ndarray]
) -> None:
    save_file(values, tmp_path / "model.safetensors")
    assert tensor_shapes(tmp_path) == SHAPES


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no \*\.safetensors"):
        tensor_shapes(tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((1 << 62).to_bytes(8, "little") + b"{")
    with pytest.raises(DataError, match=r"model\.safetensors is no safetensors file"):
        tensor_shapes(tmp_path)
