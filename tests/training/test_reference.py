"""The reference stays where the actor began."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agentrl.training import DistSpec, Reference, ReferenceSpec, join, shards, union
from agentrl.training.data.partition import partition
from agentrl.types import Batch
from tests.tiny_models import write_qwen3
from tests.training.harness import VOCAB, layout, make_actor, make_batch, prepared, update


def logprobs_of(reference: Reference, batch: Batch) -> np.ndarray:
    (shard,) = shards(
        batch,
        union(partition(batch.lengths, batch.trajectory, seed=0, layout=layout(1, 1000))),
    )
    order = np.concatenate(
        [np.arange(batch.cu_seqlens[s], batch.cu_seqlens[s + 1]) for s in shard.samples]
    )
    column = np.zeros(batch.num_tokens, np.float32)
    column[order] = reference.logprobs(shard)["ref_logprobs"]
    return column


def with_reference(path: str, batch: Batch) -> Batch:
    reference = Reference(ReferenceSpec(path), DistSpec())
    return batch.join({"ref_logprobs": logprobs_of(reference, batch)})


def test_the_reference_is_the_actor_before_its_first_step(model_path: str) -> None:
    actor = make_actor(model_path)
    batch = with_reference(model_path, prepared(actor, make_batch()))
    assert batch.old_logprobs is not None
    assert batch.ref_logprobs is not None
    np.testing.assert_allclose(batch.ref_logprobs, batch.old_logprobs, atol=2e-6)


def test_the_divergence_grows_from_zero_and_is_part_of_the_loss(model_path: str) -> None:
    actor = make_actor(model_path, settings={"kl_coef": 0.1})
    batch = with_reference(model_path, prepared(actor, make_batch()))
    first, second = update(actor, batch), update(actor, batch)
    assert first["policy/kl_ref"].mean == pytest.approx(0.0, abs=1e-6)
    assert second["policy/kl_ref"].mean > 1e-5


def test_one_token_far_from_the_reference_does_not_outweigh_the_batch(
    model_path: str,
) -> None:
    actors = [
        make_actor(model_path, settings={"kl_coef": 0.1, "kl_cap": cap})
        for cap in (10.0, None)
    ]
    batch = with_reference(model_path, prepared(actors[0], make_batch()))
    assert batch.ref_logprobs is not None
    far = batch.ref_logprobs.copy()
    far[np.flatnonzero(batch.loss_mask)[0]] += (
        12.0  # k3 and its gradient are e^12, and the batch has a hundred tokens
    )
    plain = update(make_actor(model_path, settings={"kl_coef": 0.1}), batch)[
        "optim/grad_norm"
    ].mean

    capped, uncapped = (
        update(one, replace(batch, ref_logprobs=far))["optim/grad_norm"].mean
        for one in actors
    )

    assert capped == pytest.approx(plain, rel=0.05)
    assert uncapped > 50 * plain


def test_an_update_without_the_reference_it_needs_says_so(model_path: str) -> None:
    actor = make_actor(model_path, settings={"kl_coef": 0.1})
    with pytest.raises(ValueError, match=r"batch\.ref_logprobs is missing"):
        update(actor, prepared(actor, make_batch()))


def test_an_id_that_a_smaller_model_has_no_row_for_is_read_as_its_last(
    tmp_path: Path,
) -> None:
    smaller = str(write_qwen3(tmp_path, vocab_size=VOCAB - 20))
    batch = make_batch()
    assert np.count_nonzero(batch.token_ids >= VOCAB - 20) > 5
    known = replace(batch, token_ids=np.minimum(batch.token_ids, VOCAB - 21))
    join(DistSpec())
    found, expected = (
        logprobs_of(Reference(ReferenceSpec(smaller, reads_policy=reads), DistSpec()), one)
        for reads, one in ((True, batch), (False, known))
    )
    np.testing.assert_array_equal(found, expected)
    # one that nobody says is padding is a mistake
    with pytest.raises(IndexError):
        logprobs_of(Reference(ReferenceSpec(smaller), DistSpec()), batch)
