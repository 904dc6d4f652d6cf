"""A run whose policy and critic have adapters: its reference is no second model, what engines are
given is verified, and it goes on to the last bit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from transformers import AutoModelForCausalLM

from agentrl.cli.main import run as run_command_line
from agentrl.errors import StoreError
from agentrl.store import RunDirectory, read_jsonl
from tests.run.tiny_run import CONFIG, metrics, train

pytestmark = pytest.mark.slow

ALONE = CONFIG[: CONFIG.index("stages:")].replace(
    "optim: {lr: 1.0e-3}", "optim: {lr: 1.0e-2}"
)
LORA = ("model.lora.rank=4", "algorithm.kl_coef=0.1", "checkpoint.every=1")


def log(run: Path) -> list[dict[str, object]]:
    return list(read_jsonl(RunDirectory(run).log_folder / "driver.jsonl"))


def numbers(run: Path) -> list[object]:
    names = ("policy/loss", "policy/kl_loss", "optim/grad_norm", "policy_version")
    return [[row.get(name) for name in names] for row in metrics(run) if row["step"]]


def test_an_adapter_is_trained_published_and_resumed(tmp_path: Path) -> None:
    whole = train(tmp_path, *LORA, "train.steps=4", text=ALONE, name="whole")
    rows = [row for row in metrics(whole) if row["step"]]
    assert rows[0]["policy/kl_loss"] == pytest.approx(0.0, abs=1e-9)
    assert rows[-1]["policy/kl_loss"] > 0
    # the engine's own probabilities are the trainer's: it serves base and adapter
    assert all(row["mismatch/logp_abs/mean"] < 1e-4 for row in rows)
    # each publish is of a whole model
    sent = [row["bytes"] for row in log(whole) if row.get("event") == "weights_published"]
    assert len(sent) == 5
    assert len(set(sent)) == 1
    # there is one role, whose checkpoint holds the factors and their moments
    (last,) = (whole / "checkpoints" / "train").glob("step=000004")
    assert {path.name for path in last.iterdir() if path.is_dir()} == {"actor"}
    stored = FileSystemReader(last / "actor").read_metadata().state_dict_metadata
    assert {key for key in stored if ".lora." not in key} == {"step"}
    cut = train(tmp_path, *LORA, "train.steps=2", text=ALONE, name="cut")
    with pytest.raises(
        StoreError, match=r"adapter of rank 4, and .*model\.lora\.rank"
    ) as held:
        train(tmp_path, *LORA[1:], "train.steps=4", text=ALONE, name="cut", resume=True)
    # a checkpoint that is whole is not to be deleted
    assert "delete" not in str(held.value)
    train(tmp_path, *LORA, "train.steps=4", text=ALONE, name="cut", resume=True)
    assert numbers(cut) == numbers(whole)

    # what a stage leaves is a whole model, and so is a merged export of its last checkpoint
    assert (
        run_command_line(["export", "model", str(whole), "--to", str(tmp_path / "adapter")])
        == 0
    )
    merged = str(tmp_path / "merged")
    assert run_command_line(["export", "model", str(whole), "--to", merged, "--merge"]) == 0
    left, exported = (
        AutoModelForCausalLM.from_pretrained(folder).state_dict()
        for folder in (whole / "models" / "train", merged)
    )
    for name, one in left.items():
        torch.testing.assert_close(exported[name], one, rtol=1e-6, atol=1e-7)

    # another run goes on from the adapter, of the same base
    start = tmp_path / "adapter"
    base = shutil.copytree(whole / "models" / "start", tmp_path / "base")
    again = [f"model.path={base}", f"model.lora.path={start}", "train.steps=1"]
    run = train(tmp_path, *again, text=ALONE, name="again")
    assert next(row for row in metrics(run) if row["step"])["optim/grad_norm"] > 0


def test_a_critic_has_an_adapter_of_its_own(tmp_path: Path) -> None:
    own = (
        "algorithm.name=ppo",
        "critic.stage=model",
        "critic.lora.rank=2",
        "train.steps=2",
    )
    run = train(tmp_path, *own, "model.lora.rank=4", text=ALONE)
    rows = [row for row in metrics(run) if row["step"]]
    assert all(row["critic/optim/grad_norm"] > 0 for row in rows)
    assert (run / "models" / "train" / "critic" / "config.json").is_file()
