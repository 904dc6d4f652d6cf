"""What does not divide is refused by its setting; slices and checksums of parts, by hand."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import (
    GPT2Config,
    GptOssConfig,
    MixtralConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

import agentrl
from agentrl.engines.torch.model.families import FAMILIES
from agentrl.errors import ConfigError
from agentrl.training import DistSpec
from agentrl.training.data.packing import Cut, padded_spans, slice_row
from agentrl.training.data.prefix_tree import ROOT, Span
from agentrl.training.models.mixture import check_expert_parallel
from agentrl.training.parallel.process_group import Sharding, expert_mesh, num_replicas
from agentrl.training.parallel.sequence_parallel import check_sequence_parallel
from agentrl.training.parallel.tensor_parallel import check_tensor_parallel
from agentrl.training.roles.policy import Reference, ReferenceSpec

NAMED = "ActorSpec.model_path='m'"
SHAPE: dict[str, Any] = {
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 96,
}


@pytest.mark.parametrize(
    ("settings", "tp", "message"),
    [
        (
            {},
            5,
            "PlacementConfig.tp_size must divide the 12 attention heads of ActorSpec.model_path",
        ),
        ({}, 6, "must divide the 4 key heads (or be a multiple of them) of"),
        ({"intermediate_size": 90}, 4, "must divide the 90 units of each MLP of"),
        ({"vocab_size": 98}, 4, "must divide the 98 entries of the vocabulary of"),
    ],
)
def test_a_size_that_tp_does_not_divide_is_refused(
    settings: dict[str, int], tp: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_tensor_parallel(Qwen3Config(**SHAPE | settings), tp, NAMED)


def test_a_vocabulary_that_tp_does_not_divide_is_refused_with_the_remedy() -> None:
    message = (
        f"PlacementConfig.tp_size must divide the 297 entries of the vocabulary of {NAMED}, got 2; "
        "set "
        "one of 1, or add unused entries: transformers' resize_token_embeddings(None, "
        "pad_to_multiple_of=2), and save the model again"
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_tensor_parallel(Qwen3Config(**SHAPE | {"vocab_size": 297}), 2, NAMED)


def test_the_remedy_makes_a_vocabulary_that_tp_divides() -> None:
    small = {"hidden_size": 8, "num_hidden_layers": 1, "head_dim": 2, "vocab_size": 297}
    model = Qwen3ForCausalLM(Qwen3Config(**SHAPE | small))
    model.resize_token_embeddings(None, pad_to_multiple_of=2)
    check_tensor_parallel(model.config, 2, NAMED)
    assert model.config.vocab_size == 298


def test_sizes_that_divide_are_named() -> None:
    with pytest.raises(ConfigError, match=r"got 5; set one of 1, 2, 4, 12$"):
        check_tensor_parallel(Qwen3Config(**SHAPE), 5, NAMED)


@pytest.mark.parametrize("tp", [1, 2, 4, 12])
def test_a_size_that_divides_is_accepted(tp: int) -> None:
    check_tensor_parallel(Qwen3Config(**SHAPE), tp, NAMED)


def test_another_family_is_refused_by_name() -> None:
    message = (
        "PlacementConfig.tp_size=2 divides models of llama, qwen2, qwen3, qwen3_moe, mixtral, got "
        "'gpt2' as the "
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_tensor_parallel(GPT2Config(), 2, NAMED)


def test_a_mixture_whose_attention_cannot_be_divided_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="got 'gpt_oss' as the family of"):
        check_tensor_parallel(GptOssConfig(), 2, NAMED)


def test_an_mlp_that_no_layer_of_a_mixture_has_is_not_divided() -> None:
    odd = SHAPE | {"intermediate_size": 90}
    check_tensor_parallel(Qwen3MoeConfig(**odd), 4, NAMED)
    with pytest.raises(ConfigError, match="must divide the 90 units of each MLP of"):
        check_tensor_parallel(Qwen3MoeConfig(**odd, mlp_only_layers=[0]), 4, NAMED)


def test_a_dense_model_has_no_experts_to_divide() -> None:
    message = (
        "TrainConfig.ep_size=2 divides the experts of qwen3_moe, mixtral, gpt_oss, got 'qwen3' as "
        f"the family of {NAMED}; set TrainConfig.ep_size=1"
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_expert_parallel(Qwen3Config(**SHAPE), 2, NAMED)
    check_expert_parallel(Qwen3Config(**SHAPE), 1, NAMED)


@pytest.mark.parametrize(
    "config", [Qwen3MoeConfig(num_experts=6), MixtralConfig(num_local_experts=6)]
)
def test_experts_that_ep_does_not_divide_are_refused(config: Any) -> None:
    divide = f"must divide the 6 experts of each layer of {NAMED}"
    message = f"TrainConfig.ep_size {divide}, got 4; set one"
    with pytest.raises(ConfigError, match=re.escape(message) + " of 1, 2, 3, 6$"):
        check_expert_parallel(config, 4, NAMED)
    check_expert_parallel(config, 3, NAMED)


def test_ranks_that_ep_does_not_divide_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"TrainConfig\.ep_size must divide.* 6 here, got 4; set a"
    ):
        expert_mesh(DistSpec(world_size=6), Sharding(ep=4))
    # two replicas of two ranks each
    with pytest.raises(
        ConfigError, match=r"TrainConfig\.shard_size \* tp_size.* 2 here, got 4; set a"
    ):
        expert_mesh(DistSpec(world_size=4), Sharding("hybrid", 2, ep=4))


def test_heads_that_sp_does_not_divide_are_refused() -> None:
    message = (
        "PlacementConfig.sp_size must divide the 12 attention heads / PlacementConfig.tp_size=2 of "
        f"{NAMED}, got 4; set one of 1, 2, 3, 6"
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_sequence_parallel(Qwen3Config(**SHAPE), 2, 4, NAMED)


@pytest.mark.parametrize(
    ("place", "ep", "message"),
    [
        (
            DistSpec(world_size=5, tp=5),
            1,
            "PlacementConfig.tp_size must divide the 12 attention",
        ),
        (
            DistSpec(world_size=2),
            2,
            "TrainConfig.ep_size=2 divides the experts of qwen3_moe",
        ),
    ],
)
def test_a_role_refuses_its_layout_before_it_loads_anything(
    place: DistSpec, ep: int, message: str, tmp_path: Path
) -> None:
    Qwen3Config(**SHAPE).save_pretrained(tmp_path)  # and no weights
    with pytest.raises(ConfigError, match=re.escape(message)):
        Reference(ReferenceSpec(str(tmp_path), sharding=Sharding(ep=ep)), place)


@pytest.mark.parametrize(
    ("place", "sharding", "message"),
    [
        (
            DistSpec(world_size=6, tp=4),
            Sharding(),
            "must divide PlacementConfig.world_size=6, got 4 *",
        ),
        (DistSpec(world_size=4), Sharding("hybrid"), "needs TrainConfig.shard_size"),
        (
            DistSpec(world_size=4),
            Sharding("hybrid", 3),
            "must divide the 4 data-parallel ranks",
        ),
        (
            DistSpec(world_size=4),
            Sharding("full", 2),
            "is for TrainConfig.shard='hybrid' alone",
        ),
    ],
)
def test_ranks_that_cannot_be_divided_are_refused(
    place: DistSpec, sharding: Sharding, message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        num_replicas(place, sharding)


def test_replicas_are_counted_in_data_coordinates() -> None:
    # 16 ranks, 2 · 2 a coordinate: 4 coordinates, by twos
    assert num_replicas(DistSpec(world_size=16, tp=2, sp=2), Sharding("hybrid", 2)) == 2


def test_a_token_belongs_to_the_slice_of_the_position_before_it() -> None:
    # seven tokens, and padding, over four ranks: two each. Token 2 is the first of its slice, and
    # position 1 of the slice before foretells it
    arrays = {
        "token_ids": np.array([10, 11, 12, 13, 14, 15, 16]),
        "positions": np.arange(7)[None],
        "logit_rows": np.array([1, 2, 5]),
        "temperature": np.array([1.0, 0.5, 1.0], dtype=np.float32),
        "logit_of": np.array([0, 1, 2]),
        "targets": np.array([12, 13, 16]),
        "ends": np.array([6, 3]),
        "copies": np.array([2, 1, 1, 1, 1, 1, 1]),
    }
    parts = [slice_row(arrays, np.array([1, 2, 5]), Cut(4, part)) for part in range(4)]
    assert [part.arrays["targets"].tolist() for part in parts] == [[12], [13], [16], []]
    assert [part.arrays["logit_rows"].tolist() for part in parts] == [[1], [0], [1], []]
    assert [part.arrays["token_ids"].tolist() for part in parts][2:] == [[14, 15], [16, 0]]
    assert [part.arrays["copies"].tolist() for part in parts][::3] == [[2, 1], [1, 0]]
    assert parts[0].counts == (1, 1, 1, 0)
    # the second sample ends in the second slice, the first one in the last
    assert parts[0].end_counts == (0, 1, 0, 1)
    assert parts[0].arrays["end_order"].tolist() == [1, 0]
    assert parts[3].arrays["ends"].tolist() == [0]


def test_padding_is_a_sample_of_its_own() -> None:
    spans = (Span(ROOT, 0, 3), Span(ROOT, 0, 2))
    assert padded_spans(spans, 4) == (*spans, Span(ROOT, 0, 3))
    assert padded_spans(spans, 5) == spans


def test_a_model_family_is_told_in_one_file() -> None:
    """Text of the trainer and the engine that is a model type of transformers; docstrings aside."""
    package = Path(agentrl.__file__).parent
    found = {
        path.relative_to(package).as_posix()
        for folder in ("training", "engines/torch")
        for path in (package / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in CONFIG_MAPPING_NAMES
    }
    assert found == {"engines/torch/model/families.py"}
    assert FAMILIES.keys() <= CONFIG_MAPPING_NAMES.keys()
