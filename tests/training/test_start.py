"""A role starts from the slices of its folder that its rank holds, with the numbers that
transformers loads."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM

from agentrl.engines.checksum import tensor_checksum
from agentrl.errors import ConfigError, DataError
from agentrl.training import DistSpec
from agentrl.training.models.folder_weights import Ranges, shard_ranges
from agentrl.training.models.packed_model import ModelSpec
from agentrl.training.models.policy_model import open_policy
from tests.tiny_models import write_family
from tests.training.harness import VOCAB, make_actor, write_model
from tests.training.ranks import run_ranks
from tests.training.start_rank import start
from tests.whole_models import load_policy

SMALL = 4096
"""Bytes of a tensor that every rank may read."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    # 97 rows and 33 columns are divided unevenly; two shards of files; stored in bfloat16
    odd = write_model(root / "odd", hidden_size=36, intermediate_size=50)
    untied = write_model(
        root / "untied", tie_word_embeddings=False, max_position_embeddings=64
    )
    half = AutoModelForCausalLM.from_pretrained(odd, dtype=torch.bfloat16)
    half.save_pretrained(root / "half", max_shard_size="20KB")
    found = {
        "odd": odd,
        "untied": untied,
        "half": root / "half",
        "moe": write_family(root / "moe", "qwen3_moe", vocab_size=VOCAB),
    }
    return found | {"critic": odd}


@pytest.fixture(scope="module")
def two(
    folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, Any]]]:
    out = tmp_path_factory.mktemp("two")
    roles = ",".join("critic" if name == "critic" else "actor" for name in folders)
    paths = ",".join(str(path) for path in folders.values())
    run_ranks("tests.training.start_rank", 2, roles, paths, str(out))
    return {
        name: [
            torch.load(out / f"{number}-{rank}.pt", weights_only=False) for rank in range(2)
        ]
        for number, name in enumerate(folders)
    }


@pytest.mark.wide
@pytest.mark.parametrize("name", ["odd", "untied", "half", "moe"])
def test_two_ranks_start_with_the_weights_of_transformers(
    folders: dict[str, Path], two: dict[str, list[dict[str, Any]]], name: str
) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(folders[name], dtype=torch.float32)
    expected, buffers = dict(theirs.named_parameters()), dict(theirs.named_buffers())
    assert len(list(folders["half"].glob("*.safetensors"))) > 1
    for rank in two[name]:
        assert rank["weights"].keys() == expected.keys()
        assert all(torch.equal(rank["weights"][one], expected[one]) for one in expected)
        assert {one.dtype for one in rank["weights"].values()} == {torch.float32}
        assert "model.rotary_emb.inv_freq" in buffers
        assert all(torch.equal(rank["buffers"][one], buffers[one]) for one in buffers)


@pytest.mark.slow
def test_a_new_head_is_the_same_on_every_rank_and_layout(
    folders: dict[str, Path], two: dict[str, list[dict[str, Any]]]
) -> None:
    alone = start("critic", str(folders["critic"]), DistSpec())["weights"]
    assert alone["score.weight"].std() > 0
    for rank in two["critic"]:
        assert rank["weights"].keys() == alone.keys()
        assert all(torch.equal(rank["weights"][one], alone[one]) for one in alone)


@pytest.mark.parametrize("name", ["odd", "moe"])
def test_two_ranks_publish_the_tensors_of_the_folder(
    folders: dict[str, Path], two: dict[str, list[dict[str, Any]]], name: str
) -> None:
    stored = load_file(folders[name] / "model.safetensors")
    sums = {one: tensor_checksum(one, tensor) for one, tensor in stored.items()}
    for rank in two[name]:
        assert rank["published"].keys() == stored.keys()
        assert all(torch.equal(rank["published"][one], stored[one]) for one in stored)
        assert rank["checksum"] == sums


@pytest.mark.parametrize("name", ["odd", "untied", "half", "moe"])
def test_ranks_read_no_large_tensor_twice_and_nothing_is_left_out(
    two: dict[str, list[dict[str, Any]]], name: str
) -> None:
    first, second = (rank["read"][0] for rank in two[name])
    for key in first.keys() & second.keys():
        shared = sum(overlap(one, other) for one, other in product(first[key], second[key]))
        assert shared * 4 <= SMALL, key
    # each rank's share is about a half
    sizes = [
        sum(math.prod(b - a for a, b in one) for part in read.values() for one in part)
        for read in (first, second)
    ]
    assert max(sizes) < 0.75 * sum(sizes)


def overlap(one: Ranges, other: Ranges) -> int:
    """Elements of both."""
    return math.prod(
        max(0, min(b, d) - max(a, c)) for (a, b), (c, d) in zip(one, other, strict=True)
    )


# Placements of eight rows over a mesh of two data and two tensor ranks, and the rows of each rank
# by hand. The strided one is FSDP's over tensor parallelism: the tensor ranks divide first.
LAYOUTS = {
    "rows": ((Replicate(), Shard(0)), [[(0, 4)], [(4, 8)], [(0, 4)], [(4, 8)]]),
    "both": ((Shard(0), Shard(0)), [[(0, 2)], [(2, 4)], [(4, 6)], [(6, 8)]]),
    "fsdp over tensor": (
        (_StridedShard(0, split_factor=2), Shard(0)),
        [[(0, 2)], [(4, 6)], [(2, 4)], [(6, 8)]],
    ),
    "fused halves": (
        (Replicate(), _StridedShard(0, split_factor=2)),
        [[(0, 2), (4, 6)], [(2, 4), (6, 8)], [(0, 2), (4, 6)], [(2, 4), (6, 8)]],
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rank", range(4))
def test_each_layouts_rows_are_those_of_its_placements(layout: str, rank: int) -> None:
    placements, rows = LAYOUTS[layout]
    dist.init_process_group("fake", rank=rank, world_size=4, store=FakeStore())
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    size = sum(high - low for low, high in rows[rank])
    tensor = DTensor.from_local(
        torch.empty(size, 3, device="meta"),
        mesh,
        placements,
        run_check=False,
        shape=torch.Size((8, 3)),
        stride=(3, 1),
    )
    assert shard_ranges(tensor) == (tuple(rows[rank]), ((0, 3),))


def test_columns_of_few_rows_leave_a_rank_without_any() -> None:
    dist.init_process_group("fake", rank=3, world_size=4, store=FakeStore())
    mesh = init_device_mesh("cpu", (4,))
    tensor = DTensor.from_local(
        torch.empty(5, 0, device="meta"),
        mesh,
        (Shard(1),),
        run_check=False,
        shape=torch.Size((5, 3)),
        stride=(3, 1),
    )
    assert shard_ranges(tensor) == (((0, 5),), ())


def test_an_opened_model_has_no_weights_yet(model_path: str) -> None:
    model = open_policy(ModelSpec(model_path))
    assert all(parameter.is_meta for parameter in model.parameters())


def test_a_rotary_buffer_of_another_base_is_refused(
    model_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_policy(ModelSpec(model_path))
    rotary = model.hf.base_model.rotary_emb  # type: ignore[union-attr]
    rotary.inv_freq *= 1.01  # type: ignore[union-attr]
    with pytest.raises(
        ConfigError, match=r"buffer 'inv_freq' of Qwen3RotaryEmbedding is not"
    ):
        model.fill(torch.device("cpu"))


def test_tied_weights_that_differ_in_the_folder_are_two(tmp_path: Path) -> None:
    write_model(tmp_path, tie_word_embeddings=False)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"tie_word_embeddings": True})
    )
    model = load_policy(ModelSpec(str(tmp_path)))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    embeddings = model.hf.get_input_embeddings().weight  # type: ignore[operator]
    assert torch.equal(embeddings, theirs.get_input_embeddings().weight)
    assert torch.equal(model.head.weight, theirs.get_output_embeddings().weight)  # type: ignore[arg-type]
    assert not torch.equal(embeddings, model.head.weight)  # type: ignore[arg-type]


def test_a_weight_of_another_shape_is_named(tmp_path: Path) -> None:
    write_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 40}))
    with pytest.raises(DataError, match=r"gate_proj\.weight has shape \[48, 32\]"):
        load_policy(ModelSpec(str(tmp_path)))


def test_weights_in_another_format_are_read_whole_and_it_is_told(
    model_path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(model_path)
    (tmp_path / "config.json").write_bytes((Path(model_path) / "config.json").read_bytes())
    torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")
    actor = make_actor(str(tmp_path), "sft")
    assert "every rank reads the whole Qwen3ForCausalLM" in caplog.text
    assert [getattr(one, "event", None) for one in caplog.records] == ["model_read_whole"]
    expected = dict(theirs.named_parameters())
    assert all(torch.equal(weight, expected[name]) for name, weight in actor.weights())
