"""A reward model's scores, losses, checkpoints and exports against independent computations of
them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from agentrl.algorithms import make_algorithm
from agentrl.errors import ConfigError, DataError
from agentrl.training import (
    DistSpec,
    OptimSpec,
    ReferenceSpec,
    RewardLearner,
    RewardLearnerSpec,
    RewardModel,
    RewardModelSpec,
    join,
    sample_weights,
    shards,
)
from agentrl.training.data.partition import partition
from agentrl.training.models.packed_model import ModelSpec
from agentrl.training.names import DType
from agentrl.types import Batch, BatchShard, Stats
from tests.training.harness import PLAIN, layout, make_batch, write_model
from tests.whole_models import load_policy, load_score_model

LENGTHS = (13, 9, 21, 6, 17, 11, 5, 30)


def learner(
    model_path: str, settings: dict[str, Any] | None = None, **spec: Any
) -> RewardLearner:
    join(DistSpec())
    algorithm = make_algorithm("reward_model", settings)
    return RewardLearner(
        RewardLearnerSpec(model_path, algorithm, **{"optim": PLAIN, "head_seed": 5} | spec),
        DistSpec(),
    )


def pairs(lengths: Sequence[int] = LENGTHS, *, margin: float = 0.0) -> Batch:
    batch = make_batch(lengths, rollouts=2)
    return replace(
        batch, credit=np.where(batch.rollout_index == 0, margin, 0.0).astype(np.float32)
    )


def shard_of(batch: Batch, micro_batch_tokens: int = 64) -> BatchShard:
    groups = batch.group[batch.trajectory]
    (plan,) = partition(
        batch.lengths, groups, seed=0, layout=layout(1, micro_batch_tokens), unit="group"
    )
    weights = sample_weights(batch, plan, make_algorithm("reward_model").reduction)
    return shards(batch, plan, weights)[0]


def scores(role: RewardModel, batch: Batch) -> np.ndarray:
    shard = shard_of(batch)
    found = np.zeros(batch.num_samples, dtype=np.float32)
    found[shard.samples] = role.scores(shard)
    return found


def sequences(batch: Batch) -> list[Tensor]:
    ends = batch.cu_seqlens
    return [
        torch.from_numpy(batch.token_ids[a:b].astype(np.int64)) for a, b in pairwise(ends)
    ]


@pytest.fixture
def exported(model_path: str, tmp_path: Path) -> Path:
    """A reward model after one step."""
    role = learner(model_path)
    role.update(shard_of(pairs()))
    role.export(tmp_path / "rm")
    return tmp_path / "rm"


def test_scores_are_those_of_hugging_faces_own_classifier(
    model_path: str, exported: Path
) -> None:
    role = RewardModel(RewardModelSpec(str(exported)), DistSpec())
    theirs, report = AutoModelForSequenceClassification.from_pretrained(
        exported, output_loading_info=True
    )
    assert theirs.config.num_labels == 1
    assert not report["missing_keys"]
    batch = pairs()
    with torch.no_grad():
        expected = [theirs(input_ids=ids[None]).logits.item() for ids in sequences(batch)]
    assert scores(role, batch).tolist() == pytest.approx(expected, abs=1e-5)


def test_an_export_keeps_the_tokenizer_beside_it(exported: Path) -> None:
    assert (exported / "tokenizer.json").is_file()


class Theirs(nn.Module):
    """What TRL's trainer calls: a model over a padded batch, the chosen ones first."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Any) -> Any:
        return self.model(**inputs)


@pytest.mark.parametrize(("margin", "centring"), [(0.0, 0.0), (0.75, 0.0), (0.5, 0.1)])
def test_loss_and_gradient_are_those_of_trls_reward_trainer(
    exported: Path, margin: float, centring: float
) -> None:
    trl = pytest.importorskip("trl", reason="trl is not installed")
    batch = pairs(margin=margin)
    role = learner(str(exported), {"centring": centring})
    stats = role.update(shard_of(batch))

    model = AutoModelForSequenceClassification.from_pretrained(exported)
    model.config.pad_token_id = 0
    rows = [ids for start in (0, 1) for ids in sequences(batch)[start::2]]
    padded = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    attention = torch.tensor(
        [[int(i < len(ids)) for i in range(padded.shape[1])] for ids in rows]
    )
    # a pad token within a sequence would move what transformers takes for its end
    assert not any(bool((ids[-1:] == 0).any()) for ids in rows)
    asked: dict[str, Any] = {"input_ids": padded, "attention_mask": attention}
    if margin:
        asked["margin"] = torch.full((len(rows) // 2,), margin)
    trainer = SimpleNamespace(
        model=model,
        args=SimpleNamespace(center_rewards_coefficient=centring or None),
        accelerator=SimpleNamespace(gather=lambda x: x, gather_for_metrics=lambda x: x),
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    called = Theirs(model)
    forward = {name: value for name, value in asked.items() if name != "margin"}
    compute = trl.RewardTrainer.compute_loss
    loss = compute(trainer, lambda **inputs: called(**forward, use_cache=False), asked)
    loss.backward()

    assert stats["reward_model/loss"].mean == pytest.approx(loss.item(), abs=1e-5)
    squares = sum(
        float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None
    )
    assert stats["optim/grad_norm"].mean == pytest.approx(squares**0.5, rel=1e-4)
    assert stats["reward_model/accuracy"].mean == pytest.approx(
        trainer._metrics["eval"]["accuracy"][0]
    )
    assert stats["reward_model/margin"].mean == pytest.approx(
        trainer._metrics["eval"]["margin"][0], abs=1e-5
    )


def test_micro_batches_change_nothing(model_path: str) -> None:
    found: list[Stats] = []
    for micro_batch_tokens in (40, 64, 1000):
        role = learner(model_path)
        found.append(role.update(shard_of(pairs(), micro_batch_tokens)))
    for name in ("reward_model/loss", "optim/grad_norm"):
        assert [stats[name].mean for stats in found] == pytest.approx(
            [found[0][name].mean] * 3, abs=1e-5
        )


def test_learning_tells_the_pairs_apart(model_path: str) -> None:
    role = learner(model_path, optim=OptimSpec(lr=3e-3))
    for _ in range(25):
        stats = role.update(shard_of(pairs()))
    assert stats["reward_model/accuracy"].mean == 1.0
    assert stats["reward_model/loss"].mean < 0.2


def test_a_new_head_is_made_of_its_seed_alone(model_path: str) -> None:
    batch = pairs()
    first, again, other = (
        scores(learner(model_path, head_seed=seed), batch) for seed in (5, 5, 6)
    )
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()


def test_a_checkpoint_goes_on_to_the_last_bit(model_path: str, tmp_path: Path) -> None:
    optim = OptimSpec(lr=3e-3)
    role = learner(model_path, optim=optim)
    role.update(shard_of(pairs()))
    role.save(tmp_path / "kept")
    expected = [dict(role.update(shard_of(pairs()))) for _ in range(2)]

    resumed = learner(model_path, optim=optim, head_seed=99)
    resumed.load(tmp_path / "kept")
    assert [dict(resumed.update(shard_of(pairs()))) for _ in range(2)] == expected
    assert resumed.steps == 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_after_an_examination_goes_on_to_the_last_bit(
    model_path: str, tmp_path: Path, dtype: DType
) -> None:
    role = learner(model_path, optim=OptimSpec(lr=3e-3), dtype=dtype)
    role.update(shard_of(pairs()))
    role.scores(shard_of(pairs()))  # a forward without gradients, and no step after it
    role.save(tmp_path / "kept")
    expected = [dict(role.update(shard_of(pairs()))) for _ in range(2)]

    resumed = learner(model_path, optim=OptimSpec(lr=3e-3), dtype=dtype, head_seed=99)
    resumed.load(tmp_path / "kept")
    assert [dict(resumed.update(shard_of(pairs()))) for _ in range(2)] == expected


def test_a_checkpoint_read_after_an_examination_is_what_scores_from_then_on(
    model_path: str, tmp_path: Path
) -> None:
    role, other = (learner(model_path, head_seed=seed, dtype="bfloat16") for seed in (1, 2))
    other.save(tmp_path / "other")
    role.scores(shard_of(pairs()))
    role.load(tmp_path / "other")
    assert scores(role, pairs()).tolist() == scores(other, pairs()).tolist()


def test_what_only_scores_has_no_gradients(exported: Path) -> None:
    role = RewardModel(RewardModelSpec(str(exported)), DistSpec())
    assert not any(parameter.requires_grad for parameter in role.backend.model.parameters())


def test_a_causal_model_is_no_reward_model(model_path: str) -> None:
    with pytest.raises(
        DataError,
        match=r"RewardModelSpec\.model_path=.* lacks weights of a reward model \('score\.weight'\)",
    ):
        load_score_model(RewardModelSpec(model_path))


@pytest.mark.parametrize("tied", [False, True])
def test_a_reward_model_is_no_policy(tmp_path: Path, tied: bool) -> None:
    role = learner(str(write_model(tmp_path / "start", tie_word_embeddings=tied)))
    role.export(tmp_path / "rm")
    message = (
        r"^ReferenceSpec\.model_path=.* must hold a causal model, and is a "
        "Qwen3ForSequenceClassification; a reward model is no policy to start from"
    )
    with pytest.raises(DataError, match=message):
        load_policy(ReferenceSpec(str(tmp_path / "rm")))


def test_a_folder_without_an_output_layer_is_no_policy(tmp_path: Path) -> None:
    write_model(tmp_path, tie_word_embeddings=False)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"and lacks weights \('lm_head\.weight'\)"):
        load_policy(ModelSpec(str(tmp_path)))


def test_a_policys_algorithm_trains_no_reward_model(model_path: str) -> None:
    with pytest.raises(ConfigError, match="algorithm 'sft' has no pair_loss"):
        RewardLearner(RewardLearnerSpec(model_path, make_algorithm("sft")), DistSpec())


def test_a_group_that_is_no_pair_is_refused(model_path: str) -> None:
    batch = make_batch((9, 8, 7), rollouts=3)
    (plan,) = partition(
        batch.lengths, batch.group, seed=0, layout=layout(1, 64), unit="group"
    )
    shard = shards(batch, plan, np.ones(3))[0]
    with pytest.raises(DataError, match="learns from pairs"):
        learner(model_path).update(shard)


def test_a_gradient_that_is_not_finite_takes_no_step(model_path: str) -> None:
    role = learner(model_path)
    shard = shard_of(pairs())
    before = role.backend.model.head.weight.full_tensor().clone()  # type: ignore[attr-defined]
    stats = role.update(replace(shard, sample_weight=np.full(len(LENGTHS), np.nan)))
    assert stats["optim/not_finite"].sum == 1
    assert role.steps == 0
    assert torch.equal(role.backend.model.head.weight.full_tensor(), before)  # type: ignore[attr-defined]


def test_a_pair_lies_in_one_micro_batch() -> None:
    batch = pairs()
    groups = batch.group[batch.trajectory]
    for ranks in (1, 2, 3):
        (plan,) = partition(
            batch.lengths, groups, seed=0, layout=layout(ranks, 40), unit="group"
        )
        rows = np.concatenate([part.samples for part in plan.coordinates])
        assert sorted(rows.tolist()) == list(range(len(LENGTHS)))
        for part in plan.coordinates:
            for micro in part.micro_batches:
                owners = groups[list(micro)] if micro else groups[:0]
                assert all(np.count_nonzero(owners == group) == 2 for group in owners)


def test_a_pair_longer_than_a_micro_batch_is_refused() -> None:
    batch = pairs()
    with pytest.raises(
        ConfigError,
        match=r"TrainConfig\.micro_batch_tokens must be at least the longest group .*, got 34",
    ):
        partition(batch.lengths, batch.group, seed=0, layout=layout(1, 34), unit="group")
