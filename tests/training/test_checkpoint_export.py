"""A checkpoint becomes an ordinary Hugging Face folder, a file of weights at a time, without its
model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.cli.main import run as run_command_line
from agentrl.errors import StoreError
from agentrl.store import RunDirectory
from agentrl.training.fsdp.checkpoint_export import export_checkpoint
from agentrl.types import SegmentKind
from tests.training.harness import make_actor, make_batch, update, write_model

IDS = torch.tensor([[1, 5, 9, 2, 7]])


def logits(folder: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    with torch.no_grad():
        found: torch.Tensor = model(IDS).logits
    return found


@pytest.fixture
def run(tmp_path: Path, model_path: str) -> RunDirectory:
    """A run of a stage ``rl`` with checkpoints of steps 1 and 2, and exports beside it."""
    run = RunDirectory.create(tmp_path / "run")
    actor = make_actor(model_path, "sft")
    for step in (1, 2):
        update(actor, make_batch(kind=SegmentKind.TARGET))
        folder = run.checkpoints_folder / "rl" / f"step={step:06d}"
        actor.save(folder / "actor")
        (folder / "manifest.json").write_text("{}")
        os.utime(folder / "manifest.json", (step, step))
        actor.export(tmp_path / f"exported-{step}")
    return run


@pytest.mark.parametrize("options", [(), ("--shard-gb", "0.00002")])
def test_an_exported_checkpoint_answers_as_the_model_did(
    run: RunDirectory, tmp_path: Path, options: tuple[str, ...]
) -> None:
    for step, chosen in ((1, ("--step", "1")), (2, ())):
        to = tmp_path / f"model-{step}"
        command = ["export", "model", str(run.root), "--to", str(to), *chosen, *options]
        assert run_command_line(command) == 0
        assert torch.equal(logits(to), logits(tmp_path / f"exported-{step}"))
        beside = tmp_path / f"exported-{step}" / "tokenizer.json"
        assert (to / "tokenizer.json").read_bytes() == beside.read_bytes()
        files = sorted(path.name for path in to.glob("*.safetensors*"))
        if options:
            index = json.loads((to / "model.safetensors.index.json").read_text())
            assert len(files) > 3
            assert set(index["weight_map"].values()) == set(files[:-1])
        else:
            assert files == ["model.safetensors"]
        assert not list(tmp_path.glob("*.partial"))


def test_another_dtype_is_half_the_size(run: RunDirectory, tmp_path: Path) -> None:
    checkpoint = run.checkpoints_folder / "rl" / "step=000002" / "actor"
    whole = export_checkpoint(checkpoint, tmp_path / "whole")
    half = export_checkpoint(checkpoint, tmp_path / "half", dtype="bfloat16")
    assert half * 2 == whole
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "half", local_files_only=True)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    torch.testing.assert_close(
        model(IDS).logits.float(), logits(tmp_path / "exported-2"), rtol=0.1, atol=0.1
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--step", "7"), "keeps a checkpoint of, 1, 2, got 7"),
        (("--stage", "sft"), "has none of a stage 'sft'"),
        (("--to", "{run}"), "must be new or empty"),
    ],
)
def test_what_cannot_be_exported_is_named(
    run: RunDirectory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    told: str,
) -> None:
    given = [option.replace("{run}", str(run.root)) for option in options]
    if "--to" not in options:
        given += ["--to", str(tmp_path / "out")]
    assert run_command_line(["export", "model", str(run.root), *given]) == 3
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_run_without_a_checkpoint_says_which_setting_makes_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory.create(tmp_path / "run")
    assert (
        run_command_line(["export", "model", str(run.root), "--to", str(tmp_path / "out")])
        == 3
    )
    assert "checkpoint.every" in capsys.readouterr().err


def test_a_checkpoint_of_another_format_is_refused_and_a_damaged_one_named(
    run: RunDirectory, tmp_path: Path, model_path: str
) -> None:
    newer, damaged = (
        run.checkpoints_folder / "rl" / f"step={n:06d}" / "actor" for n in (1, 2)
    )
    listing = json.loads((newer / "files.json").read_text())
    (newer / "files.json").write_text(json.dumps({**listing, "format": 99}))
    for refused in (
        lambda: export_checkpoint(newer, tmp_path / "out"),
        lambda: make_actor(model_path, "sft").load(newer),
    ):
        with pytest.raises(StoreError, match="format 99 and this agentrl reads 2"):
            refused()
    config = damaged / "model" / "config.json"
    config.write_text(config.read_text().replace("2", "3", 1))
    with pytest.raises(
        StoreError, match=r"config\.json holds other bytes than were written"
    ):
        export_checkpoint(damaged, tmp_path / "out")
    assert not (tmp_path / "out").exists()


PEAK = """
import resource, sys, threading
from pathlib import Path
from agentrl.training.fsdp.checkpoint_export import export_checkpoint
import torch.distributed.checkpoint
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
before = peak = resident()
done = threading.Event()
def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, resident())
thread = threading.Thread(target=watch)
thread.start()
export_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]), shard_bytes=int(sys.argv[3]))
done.set()
thread.join()
print(peak - before)
"""


@pytest.mark.slow
def test_an_export_holds_one_file_of_weights_in_memory(tmp_path: Path) -> None:
    wide = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 14}
    actor = make_actor(str(write_model(tmp_path / "big", **wide)), "sft")
    actor.save(tmp_path / "checkpoint")
    shard = 64 * 2**20
    done = subprocess.run(
        [sys.executable, "-c", PEAK, tmp_path / "checkpoint", tmp_path / "out", str(shard)],
        capture_output=True,
        text=True,
        check=True,
    )
    weights = sum(path.stat().st_size for path in (tmp_path / "out").glob("*.safetensors"))
    bound = shard + 2**28
    assert weights > 1.5 * bound
    assert int(done.stdout) < bound
