"""The tiny model is an ordinary Hugging Face folder that every part of the framework can take for a
real one.
"""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.errors import DataError
from agentrl.render import ChatMLRenderer, ChatMLStyle, RendererSpec
from agentrl.training.models.tiny import MARKERS, SPECIAL, build_tiny_model
from agentrl.types import SegmentKind, concat_ids, load_object

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(example: str, name: str) -> Any:
    return load_object(name, EXAMPLES / example)


@pytest.fixture(scope="module", params=["code", "search"])
def example(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(example: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp(example)
    load(example, "warmup.py:build_model")(str(made))
    return made


@pytest.fixture(scope="module")
def renderer(folder: Path) -> ChatMLRenderer:
    renderer = RendererSpec(str(folder)).build()
    assert isinstance(renderer, ChatMLRenderer)
    return renderer


@pytest.mark.slow
def test_transformers_opens_it_as_a_causal_model(
    folder: Path, renderer: ChatMLRenderer
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.dtype is torch.float32
    assert model.config.vocab_size == renderer.vocab_size
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert model.generation_config.eos_token_id == list(renderer.stop_token_ids)


def test_the_recipes_widths_make_two_thirds_of_a_million_parameters(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    assert 0.55e6 < AutoModelForCausalLM.from_pretrained(folder).num_parameters() < 0.7e6


def test_its_own_template_is_recognised_as_plain_chatml(renderer: ChatMLRenderer) -> None:
    assert renderer.style == ChatMLStyle()


def test_the_tokenizer_reads_digits_one_by_one_and_marks_tools_as_qwen_does(
    folder: Path,
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert [tokenizer.decode(token) for token in tokenizer.encode("1234")] == [
        "1",
        "2",
        "3",
        "4",
    ]
    flags = {
        token.content: token.special for token in tokenizer.added_tokens_decoder.values()
    }
    assert flags == dict.fromkeys(SPECIAL, True) | dict.fromkeys(MARKERS, False)


def test_a_word_is_the_same_tokens_wherever_it_stands(folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.encode("bodade")
    for text in (" bodade", '"bodade"', "of bodade: "):
        around = tokenizer.encode(text)
        assert any(around[start : start + len(ids)] == ids for start in range(len(around)))


def test_episodes_stay_short(example: str, renderer: ChatMLRenderer) -> None:
    lengths = []
    for row in islice(load(example, "warmup.py:demonstrations")(0), 200):
        prompt = renderer.prompt(row["messages"])
        lengths.append(sum(len(segment) for segment in prompt))
    assert np.mean(lengths) < 150
    assert max(lengths) < 400


def test_a_demonstration_is_imitated_token_for_token(
    example: str, renderer: ChatMLRenderer
) -> None:
    """Prompt, targets and what the tool said join to what the whole conversation renders as."""
    for row in islice(load(example, "warmup.py:demonstrations")(1), 100):
        messages = row["messages"]
        segments = list(renderer.prompt(messages[:1]))
        for turn, message in enumerate(messages[1:], start=1):
            if message["role"] == "assistant":
                segments.append(renderer.target(message))
            else:
                extension = renderer.extend(
                    segments[-1].token_ids, messages[turn : turn + 1]
                )
                assert extension is not None
                segments += extension
        whole = renderer.prompt(messages)[0].token_ids
        joined = concat_ids(segments)
        assert whole[: joined.size].tolist() == joined.tolist()
        assert {segment.kind for segment in segments} <= {
            SegmentKind.PROMPT,
            SegmentKind.TARGET,
            SegmentKind.TEMPLATE,
            SegmentKind.OBSERVATION,
        }


def test_equal_seeds_give_equal_files(tmp_path: Path) -> None:
    rows = list(islice(load("code", "warmup.py:demonstrations")(0), 50))
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        build_tiny_model(tmp_path / name, rows, seed=seed, num_demonstrations=50)
    files = [path.name for path in sorted((tmp_path / "a").iterdir())]
    assert {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
    } < set(files)
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (
            tmp_path / "b" / name
        ).read_bytes(), name
    assert (tmp_path / "a" / "model.safetensors").read_bytes() != (
        tmp_path / "c" / "model.safetensors"
    ).read_bytes()


def test_experts_of_a_token_are_as_wide_as_an_mlp(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    rows = list(islice(load("code", "warmup.py:demonstrations")(0), 50))
    build_tiny_model(tmp_path, rows, num_demonstrations=50, experts=4, top_k=2)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(model).__name__ == "Qwen3MoeForCausalLM"
    shapes = {tuple(layer.mlp.experts.down_proj.shape) for layer in model.model.layers}
    assert shapes == {(4, 128, 384 // 2)}


def test_building_leaves_the_callers_random_numbers_alone(tmp_path: Path) -> None:
    import torch

    before, state = torch.random.get_rng_state(), random.getstate()
    build_tiny_model(
        tmp_path, load("code", "warmup.py:demonstrations")(0), num_demonstrations=50
    )
    assert torch.equal(before, torch.random.get_rng_state())
    assert state == random.getstate()


def test_too_few_demonstrations_are_refused(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": "a"}]}] * 3
    with pytest.raises(DataError, match="needs 10 demonstrations, got 3"):
        build_tiny_model(tmp_path, rows, num_demonstrations=10)


def test_the_configuration_is_json_that_others_read(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["head_dim"] == 32
