"""Packed logprobs against a plain padded forward of the same model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.errors import ConfigError, DataError
from agentrl.training import shards
from agentrl.training.data.partition import partition
from agentrl.training.models import policy_model
from agentrl.training.models.packed_model import ModelSpec
from agentrl.types import Batch
from tests.engines.test_any_decoder import FAMILIES
from tests.engines.tiny import VOCAB as FEWER
from tests.engines.tiny import make_model
from tests.tiny_models import SLIDING
from tests.training.harness import VOCAB, layout, make_actor, make_batch, write_model
from tests.whole_models import load_policy


@torch.no_grad()
def padded_logprobs(path: str, batch: Batch) -> np.ndarray:
    """``[T]`` logprobs of masked tokens by Hugging Face's own forward, one padded row a sample."""
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    lengths = batch.lengths.tolist()
    rows = torch.split(torch.from_numpy(batch.token_ids.astype(np.int64)), lengths)
    ids = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence(
        [torch.ones_like(row) for row in rows], batch_first=True
    )
    logits = (
        model(input_ids=ids, attention_mask=mask).logits
        / torch.from_numpy(batch.temperature)[:, None, None]
    )
    logprobs = torch.log_softmax(logits, -1)[:, :-1].gather(2, ids[:, 1:, None]).squeeze(2)
    parts = [
        torch.cat([torch.zeros(1), row[: length - 1]])
        for row, length in zip(logprobs, lengths, strict=True)
    ]
    return torch.cat(parts).numpy() * (batch.loss_mask != 0)


def packed_logprobs(
    path: str, batch: Batch, micro_batch_tokens: int = 64, **spec: object
) -> np.ndarray:
    actor = make_actor(path, **spec)  # type: ignore[arg-type]
    (plan,) = partition(
        batch.lengths,
        np.zeros(batch.num_samples, int),
        seed=0,
        layout=layout(1, micro_batch_tokens),
    )
    (shard,) = shards(batch, plan)
    column = np.zeros(batch.num_tokens, np.float32)
    index = np.concatenate(
        [np.arange(batch.cu_seqlens[s], batch.cu_seqlens[s + 1]) for s in shard.samples]
    )
    column[index] = actor.logprobs(shard)["old_logprobs"]
    return column


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_packed_logprobs_are_those_of_a_padded_forward(
    model_path: str, temperature: float
) -> None:
    batch = make_batch(temperature=temperature)
    np.testing.assert_allclose(
        packed_logprobs(model_path, batch), padded_logprobs(model_path, batch), atol=1e-5
    )


def test_each_samples_own_temperature_counts(model_path: str) -> None:
    batch = make_batch()
    mixed = replace(
        batch, temperature=np.linspace(0.5, 1.5, batch.num_samples, dtype=np.float32)
    )
    np.testing.assert_allclose(
        packed_logprobs(model_path, mixed), padded_logprobs(model_path, mixed), atol=1e-5
    )
    assert (
        np.abs(
            packed_logprobs(model_path, mixed) - packed_logprobs(model_path, batch)
        ).max()
        > 1e-2
    )


def test_an_output_layer_of_its_own_is_used(tmp_path: Path) -> None:
    path, batch = str(write_model(tmp_path, tie_word_embeddings=False)), make_batch()
    np.testing.assert_allclose(
        packed_logprobs(path, batch), padded_logprobs(path, batch), atol=1e-5
    )


def test_a_sliding_window_is_kept(tmp_path: Path) -> None:
    write_model(tmp_path, **SLIDING)
    batch = make_batch()
    np.testing.assert_allclose(
        packed_logprobs(str(tmp_path), batch),
        padded_logprobs(str(tmp_path), batch),
        atol=1e-5,
    )


def test_entries_off_the_mask_are_zero(model_path: str) -> None:
    batch = make_batch()
    column = packed_logprobs(model_path, batch)
    assert not column[batch.loss_mask == 0].any()
    assert (column[batch.loss_mask != 0] < 0).all()


def test_a_samples_numbers_do_not_depend_on_its_neighbours(model_path: str) -> None:
    batch = make_batch()
    together = packed_logprobs(model_path, batch, 1000)
    alone = packed_logprobs(model_path, batch, 30)
    np.testing.assert_allclose(together, alone, atol=2e-6)


def test_logits_in_chunks_are_the_same(
    model_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch()
    at_once = packed_logprobs(model_path, batch)
    monkeypatch.setattr(policy_model, "_CHUNK_ELEMENTS", 3 * VOCAB)
    np.testing.assert_allclose(packed_logprobs(model_path, batch), at_once, atol=1e-6)


def test_a_bfloat16_forward_is_near(model_path: str) -> None:
    batch = make_batch()
    difference = packed_logprobs(model_path, batch, dtype="bfloat16") - packed_logprobs(
        model_path, batch
    )
    assert 0 < np.abs(difference).max() < 0.1


def test_a_first_token_can_not_be_trained(model_path: str) -> None:
    batch = make_batch([9, 7, 5], rollouts=3)
    mask = batch.loss_mask.copy()
    mask[batch.cu_seqlens[2]] = 1
    with pytest.raises(DataError, match="loss_mask marks that of sample 2 of its shard"):
        packed_logprobs(model_path, replace(batch, loss_mask=mask))


@pytest.mark.parametrize("temperature", [0.0, float("nan"), float("inf")])
def test_a_temperature_without_logprobs_is_refused(
    model_path: str, temperature: float
) -> None:
    with pytest.raises(DataError, match=r"batch\.temperature must be above 0 and finite"):
        packed_logprobs(model_path, make_batch(temperature=temperature))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"it has no config\.json"):
        load_policy(ModelSpec(str(tmp_path)))


def test_a_torn_model_is_refused(tmp_path: Path) -> None:
    (write_model(tmp_path) / "model.safetensors").unlink()
    with pytest.raises(DataError, match="could not be loaded as a causal model"):
        load_policy(ModelSpec(str(tmp_path)))


def test_a_family_that_changes_logits_after_its_head_is_refused(tmp_path: Path) -> None:
    from transformers import GraniteConfig, GraniteForCausalLM

    config = GraniteConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        logits_scaling=8.0,
    )
    GraniteForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="changes logits after its output layer"):
        load_policy(ModelSpec(str(tmp_path)))


REFUSED = {
    "cohere": "changes logits after its output layer",
    "falcon": "doesn't use transformers' attention interface",
    "gemma2": r"^ActorSpec\.model_path=.*: Gemma2ForCausalLM: .* lacks 'softcap'",
    "gpt_oss": r"^ActorSpec\.model_path=.*: GptOssForCausalLM: .* lacks 's_aux'",
    "gptj": "doesn't use transformers' attention interface",
    "stablelm": "doesn't use transformers' attention interface",
}
"""Of the families that are known here."""


def write_tiny(folder: Path, family: str, **settings: Any) -> str:
    make_model(family, **settings).module.save_pretrained(folder)
    return str(folder)


@pytest.mark.wide
@pytest.mark.parametrize("family", FAMILIES)
def test_a_familys_packed_samples_are_what_they_are_alone(
    tmp_path: Path, family: str
) -> None:
    path = write_tiny(tmp_path, family, **FAMILIES[family])
    batch = make_batch()
    batch = replace(batch, token_ids=batch.token_ids % FEWER)
    if family in REFUSED:
        with pytest.raises((ConfigError, DataError), match=REFUSED[family]):
            packed_logprobs(path, batch)
        return
    alone = padded_logprobs(path, batch)
    np.testing.assert_allclose(packed_logprobs(path, batch), alone, atol=1e-4)


LEAKS = r"computes the samples of a packed row otherwise than each alone \(its layers mix tokens"


@pytest.mark.parametrize(
    ("family", "settings", "told"),
    [
        ("lfm2", {"layer_types": ["full_attention", "conv"]}, LEAKS),
        (
            "minimax",
            {
                "layer_types": ["full_attention", "linear_attention"],
                "num_local_experts": 2,
                "num_experts_per_tok": 1,
            },
            LEAKS,
        ),
        # its mask hides nothing before it is trained
        ("doge", {}, LEAKS),
        ("phimoe", {"sliding_window": 8, "num_local_experts": 2}, LEAKS),
        ("nemotron", {}, r"raises TypeError over a packed row \(.*'masks'"),
    ],
)
def test_a_family_that_cannot_be_packed_is_refused_when_it_is_opened(
    tmp_path: Path, family: str, settings: dict[str, Any], told: str
) -> None:
    path = write_tiny(tmp_path, family, **settings)
    message = (
        rf"^ActorSpec\.model_path='{path}': \w+ForCausalLM {told}.*; choose another family$"
    )
    with pytest.raises(ConfigError, match=message):
        make_actor(path)


@pytest.mark.parametrize("window", [None, 256])
def test_a_window_that_no_sample_outgrows_and_noise_in_training_change_nothing(
    tmp_path: Path, window: int | None
) -> None:
    """Its router draws experts, and multiplies what they read by noise, while it is trained."""
    settings = {
        "num_local_experts": 4,
        "router_jitter_noise": 0.1,
        "input_jitter_noise": 0.1,
    }
    path = write_tiny(tmp_path, "phimoe", sliding_window=window, **settings)
    batch = make_batch()
    batch = replace(batch, token_ids=batch.token_ids % FEWER)
    alone = padded_logprobs(path, batch)
    np.testing.assert_allclose(packed_logprobs(path, batch), alone, atol=1e-4)


def test_a_family_that_leaves_the_width_of_heads_open_has_its_quotient(
    tmp_path: Path,
) -> None:
    settings = {"num_local_experts": 2, "num_experts_per_tok": 1}
    facts = [
        make_actor(
            write_tiny(tmp_path / str(width), "mixtral", **settings, head_dim=width)
        ).facts()
        for width in (None, 8)
    ]
    assert '"head_dim": null' in (tmp_path / "None" / "config.json").read_text()
    assert facts[0] == facts[1]


ROPES: dict[str, dict[str, Any]] = {
    "llama": {"rope_type": "dynamic", "factor": 2.0},
    "phi3": {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4},
}
BEGINS = {"original_max_position_embeddings": 24}


@pytest.mark.parametrize("family", ROPES)
def test_a_sample_that_would_change_the_positions_of_its_neighbours_is_refused(
    tmp_path: Path, family: str
) -> None:
    rope = {"rope_theta": 1e4, **BEGINS, **ROPES[family]}
    path = write_tiny(tmp_path, family, rope_parameters=rope, pad_token_id=0, **BEGINS)
    batch = make_batch((13, 24, 9, 21))
    batch = replace(batch, token_ids=batch.token_ids % FEWER)
    alone = padded_logprobs(path, batch)
    np.testing.assert_allclose(packed_logprobs(path, batch), alone, atol=1e-4)
    longer = make_batch((13, 25, 9, 21))
    longer = replace(longer, token_ids=longer.token_ids % FEWER)
    told = (
        r"ActorSpec\.model_path=.* reads at most 24 tokens .* got a sample of 25; lower "
        r"RolloutConfig\.context_tokens or leave the sample out"
    )
    with pytest.raises(DataError, match=told):
        packed_logprobs(path, longer)


def test_a_sample_beyond_a_table_of_positions_is_refused(tmp_path: Path) -> None:
    path = write_tiny(
        tmp_path,
        "gpt2",
        **FAMILIES["gpt2"] | {"max_position_embeddings": 29, "n_positions": None},
    )
    batch = make_batch()
    with pytest.raises(DataError, match=r"reads at most 29 tokens .* got a sample of 30"):
        packed_logprobs(path, replace(batch, token_ids=batch.token_ids % FEWER))
