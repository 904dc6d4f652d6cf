"""benchmarks/gpu_train.py on a CPU: the code of a GPU at a tiny size, and what it refuses."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from agentrl.training import DistSpec
from benchmarks import gpu_train
from benchmarks.figures import NOT_HERE, ROOT
from benchmarks.trainer import gpu_attention, gpu_layouts, gpu_model, gpu_throughput
from benchmarks.trainer.gpu_device import Bench, datasheet_peak, measured_peak
from benchmarks.trainer.memory_count import Count, on_paper
from benchmarks.trainer.shapes import packed_row
from tests.kit.http import free_port
from tests.kit.waiting import DEADLINE_S

pytestmark = pytest.mark.tooling

CPU = torch.device("cpu")


def test_attentions_are_compared_and_those_that_are_absent_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    command = ["--device", "cpu", "--tiny", "--only", "attention", "--json", str(file)]
    assert gpu_train.main(command) == 0
    told = capsys.readouterr().out
    found = {row["name"]: row["value"] for row in json.loads(file.read_text())}
    for label in ("apart", "shared"):
        # bfloat16 is rounded, and no more than that
        assert 0 < found[f"{label}: segments, logprobs off float32's"] < 0.1
        assert 0 < found[f"{label}: segments, gradients off float32's"] < 0.1
    for name in ("varlen", "flex", "flash_attention_2", "flash_attention_3"):
        assert f"Left out: ModelConfig.attention='{name}' needs a CUDA device" in told


def test_a_pass_that_differs_is_off() -> None:
    gradients = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0])}
    one = gpu_attention.Pass(torch.tensor([-1.0, -2.0]), gradients)
    moved = {"a": torch.tensor([3.0, 0.3]), "b": torch.tensor([4.4])}
    other = gpu_attention.Pass(torch.tensor([-1.0, -2.5]), moved)
    # the difference (.3, .4) has norm .5, the gradient (3, 4) norm 5
    assert gpu_attention.off_by(other, one) == pytest.approx((0.5, 0.1))


def test_steps_are_timed_and_their_memory_is_beside_the_count(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    command = ["--device", "cpu", "--tiny", "--only", "throughput", "--steps", "1"]
    assert gpu_train.main([*command, "--json", str(file)]) == 0
    found = {row["name"]: row["value"] for row in json.loads(file.read_text())}
    label = "tiny, segments"
    assert found[f"{label}: tokens of a row"] == 32
    assert found[f"{label}: throughput"] > 0
    assert 0 < found[f"{label}: MFU, measured"] < 1
    assert found[f"{label}: peak over the count"] == pytest.approx(1, abs=0.25)


def test_the_least_recomputation_and_the_first_row_that_fit_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @functools.cache
    def once(shape: str, ranks: int, row: tuple[int, ...], recompute: bool) -> Count:
        options = {"recompute": recompute, "dtype": torch.float32, "attention": "segments"}
        return on_paper(shape, ranks, row, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(
        gpu_throughput,
        "on_paper",
        lambda shape, ranks, row, *, recompute, **_: once(shape, ranks, row, recompute),
    )
    rows, all_of_it = ((64,) * 4, (64,)), (False, True)
    counts = {
        (row, recompute): once("tiny", 1, row, recompute).total
        for row in rows
        for recompute in all_of_it
    }
    whole, less = rows
    wanted = {
        (whole, False): (whole, False),
        (whole, True): (less, False),
        (less, False): (less, False),
        (less, True): (less, True),
    }
    for memory_of, chosen in wanted.items():
        memory = counts[memory_of] / gpu_throughput.SAFE
        fit = gpu_throughput.fitting(
            "tiny", rows, all_of_it, memory, "segments", torch.float32
        )
        assert fit is not None
        assert (fit.lengths, fit.recompute) == chosen
    assert (
        gpu_throughput.fitting("tiny", rows, all_of_it, 1000, "segments", torch.float32)
        is None
    )


def test_operations_by_hand() -> None:
    model = gpu_model.device_policy("tiny", "segments", CPU)
    # a layer: 64 x (64 + 32 + 32 + 64) attention, 3 x 64 x 128 MLP, 2 x 64 + 2 x 16 norms
    layer = 64 * 192 + 3 * 64 * 128 + 2 * 64 + 2 * 16
    # samples of 3 and 1 tokens: scores of 9 + 1, width 64, 2 layers
    assert gpu_model.model_flops(model, [3, 1], 2) == 6 * (
        2 * layer * 4 + 512 * 64 * 2 + 10 * 64 * 2
    )


def test_a_model_is_made_on_its_device_with_tied_weights_and_rotary_frequencies() -> None:
    model = gpu_model.device_policy("tiny", "segments", CPU)
    assert model.head.weight is model.hf.get_input_embeddings().weight  # type: ignore[operator]
    assert float(model.head.weight.detach().std()) == pytest.approx(0.02, rel=0.05)  # type: ignore[operator,arg-type]
    norm = model.hf.model.norm.weight  # type: ignore[union-attr]
    assert torch.equal(norm.cpu(), torch.ones(64))  # type: ignore[operator]
    row = packed_row([6, 5], 512)
    logprobs, entropy = model(row)
    # weights are small: every token is as likely as any
    assert torch.allclose(entropy, torch.full_like(entropy, 6.238), atol=0.05)
    assert torch.allclose(logprobs, torch.full_like(logprobs, -6.238), atol=0.7)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("Some other GPU", None),
    ],
)
def test_a_device_is_known_by_its_name(name: str, peak: float | None) -> None:
    assert datasheet_peak(name) == peak
    assert measured_peak(Bench(CPU), 32) > 0


def test_layouts_are_those_that_the_ranks_allow() -> None:
    named = gpu_layouts.layouts_of(DistSpec(world_size=8), heads=4)
    assert list(named) == [
        *("full", "grad_op", "full, gradients summed once", "hybrid", "tp 2", "sp 2"),
    ]
    assert gpu_layouts.layouts_of(DistSpec(world_size=8), heads=32)["sp 8"][0].dp == 1
    assert "hybrid" not in gpu_layouts.layouts_of(DistSpec(world_size=3), heads=4)


def test_layouts_without_torchrun_are_refused() -> None:
    with pytest.raises(
        SystemExit, match=r"torchrun --nproc-per-node GPUS -m benchmarks\.gpu_train"
    ):
        gpu_layouts.own_place("cuda", {})
    environment = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "host",
        "MASTER_PORT": "29500",
    }
    place = gpu_layouts.own_place("cuda", environment)
    assert (place.rank, place.world_size, place.device) == (3, 4, "cuda:1")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_gpu_it_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_train.main([]) == NOT_HERE
    assert "needs a CUDA device" in capsys.readouterr().out


def test_a_cpu_is_for_a_trial_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_train.main(["--device", "cpu"]) == NOT_HERE
    assert "--device cpu only tries the code: add --tiny" in capsys.readouterr().out


@pytest.mark.slow
def test_every_layout_of_two_ranks_takes_the_same_step(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += [
        "--master-port",
        str(free_port()),
        "-m",
        "benchmarks.gpu_train",
        "--device",
        "cpu",
    ]
    command += ["--tiny", "--layouts", "--steps", "1", "--json", str(file)]
    told = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert told.returncode == 0, told.stderr[-3000:]
    off = {row["name"]: row["value"] for row in json.loads(file.read_text()) if row["met"]}
    assert list(off) == [
        f"tiny, {name}: loss and gradient norm, off by"
        for name in (
            "full",
            "grad_op",
            "full, gradients summed once",
            "hybrid",
            "tp 2",
            "sp 2",
        )
    ]
    assert max(off.values()) < 1e-5
