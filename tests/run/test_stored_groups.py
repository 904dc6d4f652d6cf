"""``run.replay``: a stage trains the groups that an earlier run stored, without an engine."""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.load import load_config
from agentrl.errors import AgentRLError, ConfigError, DataError
from agentrl.run.data.stored_batches import StoredBatches
from agentrl.run.lifetime.session import RunProcesses
from agentrl.store import RunDirectory, TrajectoryReader
from tests.run.tiny_run import CONFIG, metrics, states, train

pytestmark = pytest.mark.slow

QUICK = ("stages.warmup.steps=4", "stages.rl.eval.sets={}")
LEARNED = (
    "policy/",
    "optim/",
    "mismatch/logp",
    "mismatch/k3",
    "reward",
    "group/",
    "length/",
)


def run(config: Path, name: str, *overrides: str, resume: bool = False) -> Path:
    return train(config.parent, *QUICK, *overrides, name=name, resume=resume)


def weights(run_dir: Path) -> str:
    return hashlib.sha256(
        (run_dir / "models/rl/model.safetensors").read_bytes()
    ).hexdigest()


def rows(run_dir: Path) -> list[dict[str, Any]]:
    own = [row for row in metrics(run_dir) if row["stage"] == "rl"]
    return [
        {k: v for k, v in row.items() if k == "step" or k.startswith(LEARNED)}
        for row in own
    ]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stored") / "config.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def stored(config: Path) -> Path:
    return run(config, "stored")


def batches(config: Path, replay: Path, *overrides: str) -> StoredBatches:
    loaded = load_config(config, [f"run.replay={replay}", *overrides])
    return StoredBatches.of_stage(loaded.resolved_stages()[-1])


def test_the_same_algorithm_over_a_stored_run_gives_the_same_weights(
    config: Path, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_engine(*_: Any) -> None:
        raise AssertionError("a replay starts an engine")

    monkeypatch.setattr("agentrl.run.stages.engine_plan", no_engine)
    replayed = run(config, "same", f"run.replay={stored}")
    assert weights(replayed) == weights(stored)
    assert rows(replayed) == rows(stored)
    assert rows(stored)[-1]["step"] == 5
    assert states(replayed) == states(stored) == {"trained": 60}

    # stopped after two steps and gone on with
    run(config, "halves", f"run.replay={stored}", "stages.rl.steps=2")
    halves = run(config, "halves", f"run.replay={stored}", resume=True)
    assert weights(halves) == weights(stored)

    other = run(
        config,
        "other",
        f"run.replay={stored}",
        "stages.rl.algorithm.reduction=constant",
        "stages.rl.algorithm.constant_tokens=40",
    )
    assert weights(other) != weights(stored)
    assert [row["reward/mean"] for row in rows(other)] == [
        row["reward/mean"] for row in rows(stored)
    ]


def test_what_was_rolled_back_is_not_replayed(config: Path, stored: Path) -> None:
    copy = shutil.copytree(stored, config.parent / "resumed")
    found = batches(config, copy)
    assert found.num_steps == 5
    # a later attempt went back to step 4, and trained step 5 in the opposite order
    ledger = copy / "ledger.jsonl"
    last = found.groups[5]
    with ledger.open("a", encoding="utf-8") as file:
        offset = len(ledger.read_text().splitlines())
        for attempt, to, detail in [
            (0, "rolled_back", {}),
            (1, "running", {"stage": "rl"}),
            (1, "taken", {"step": 5}),
            (1, "trained", {"step": 5}),
        ]:
            for draw in reversed(last):
                row = {
                    "n": offset,
                    "attempt": attempt,
                    "policy": "main",
                    "group_index": draw,
                    "rollout_indices": list(last[draw]),
                }
                file.write(json.dumps({**row, "to": to, **detail}) + "\n")
                offset += 1
    again = batches(config, copy)
    assert list(again.groups[5]) == list(reversed(last))
    assert [again.groups[step] for step in range(1, 5)] == [
        found.groups[step] for step in range(1, 5)
    ]


def fault(config: Path, replay: Path, kind: type[AgentRLError], *overrides: str) -> str:
    with pytest.raises(kind) as caught:
        batches(config, replay, *overrides).groups_of(1)
    return str(caught.value)


def test_more_steps_than_are_stored_are_refused(config: Path, stored: Path) -> None:
    told = fault(config, stored, ConfigError, "train.steps=9")
    assert told.startswith(
        "train.steps=9 of stage 'rl' must be at most 5, the steps that run.replay"
    )


def test_a_trajectory_that_is_not_there_is_named(config: Path, stored: Path) -> None:
    copy = shutil.copytree(stored, config.parent / "damaged")
    (shard,) = (copy / "traj/sealed/step=000003").glob("*.parquet")
    shard.write_bytes(b"PAR1")
    told = fault(config, copy, DataError)
    assert "of step 3 was trained with rollouts [0, 1, 2, 3] and traj/ has []" in told
    assert "driver-0001.parquet" in told


def test_another_stage_and_no_run_are_refused(
    config: Path, stored: Path, tmp_path: Path
) -> None:
    text = CONFIG.replace("name: rl", "name: other")
    other = tmp_path / "config.yaml"
    other.write_text(text, encoding="utf-8")
    told = fault(other, stored, DataError)
    assert "no trained group of stage 'other' (metrics.jsonl has rl, warmup)" in told
    assert "is not a run directory" in fault(config, tmp_path / "none", ConfigError)


def test_tokens_older_than_the_stage_allows_are_refused(config: Path, stored: Path) -> None:
    copy = shutil.copytree(stored, config.parent / "older")
    ledger = copy / "ledger.jsonl"
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    moved = {5: 4, 4: 5}  # the last two batches, the other way round
    for row in lines:
        if "step" in row:
            row["step"] = moved.get(row["step"], row["step"])
    ledger.write_text("".join(json.dumps(row) + "\n" for row in lines))
    told = fault(config, copy, ConfigError)
    assert "of step 5 was sampled 1 versions earlier than it was trained" in told
    assert "rollout.max_staleness=0; set rollout.schedule" in told


def test_tokens_without_logprobs_are_refused(
    config: Path, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = batches(config, stored)
    (first, *_) = found.groups_of(1)
    turn = first.trajectories[0].turns[0]
    (segment,) = (one for one in turn.completion if one.logprobs is not None)
    object.__setattr__(segment, "logprobs", None)
    with pytest.raises(
        DataError, match=r"run\.replay: trajectory \d+-0-0 of .* has no logprobs"
    ):
        found._check_tokens(first.trajectories[0])


def test_no_worker_is_started_to_play(config: Path, stored: Path) -> None:
    asked = [
        f"run.replay={stored}",
        "run.deterministic=false",
        "placement.rollout_workers=2",
    ]
    loaded = load_config(config, [*asked, "placement.mode=ray"])
    inline = loaded.replace(placement=loaded.placement.replace(mode="inline"))
    with closing(RunProcesses(inline)) as processes:
        assert not processes.has_workers


def test_a_run_cannot_replay_itself(config: Path, stored: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"run\.replay must be another folder than run\.dir"
    ):
        load_config(config, [f"run.replay={stored}", f"run.dir={stored}"])


def test_the_new_run_has_the_trajectories_with_what_was_learned(
    config: Path, stored: Path
) -> None:
    replayed = config.parent / "same"
    if not replayed.exists():
        replayed = run(config, "same", f"run.replay={stored}")
    ids = [
        {(one.id, one.step) for one in reader.summaries(purpose="train")}
        for reader in (
            TrajectoryReader(RunDirectory.open(own)) for own in (stored, replayed)
        )
    ]
    assert ids[0] == ids[1]
    reader = TrajectoryReader(RunDirectory.open(replayed))
    assert reader.get(next(iter(ids[0]))[0]).annotation.arrays["advantages"].size
    assert len(rows(replayed)) == 5


def test_steps_of_the_critic_alone_made_no_version(config: Path) -> None:
    ppo = (
        "stages.rl.algorithm={name: ppo, critic_warmup_steps: 2}",
        "stages.rl.critic.stage=model",
        "stages.rl.steps=3",
        "stages.warmup.steps=1",
    )
    first = run(config, "critic", *ppo)
    again = run(config, "critic-again", *ppo, f"run.replay={first}")
    assert weights(again) == weights(first)
