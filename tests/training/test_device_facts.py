"""What is told of a run's devices, from descriptions of them as values."""

from __future__ import annotations

import pytest
import torch

from agentrl.metrics.names import describe
from agentrl.training.data.kernel_attention import usable_attention
from agentrl.training.device import DeviceMeter, Gpu, devices_line, mfu

H200 = Gpu("NVIDIA H200", (9, 0), 150 * 2**30)


def test_a_run_tells_where_it_computes() -> None:
    assert str(H200) == "NVIDIA H200 (150 GiB, capability 9.0)"
    ranks = [("a", str(H200)), ("a", str(H200)), ("b", "the CPU")]
    assert devices_line(ranks) == (
        "computes on 2 x NVIDIA H200 (150 GiB, capability 9.0) on a, the CPU on b"
    )


@pytest.mark.parametrize(
    ("name", "share"),
    [
        # 6 x 1e9 parameters x 16,483 tokens are 9.89e13 FLOPs
        ("NVIDIA H100 80GB HBM3", 0.5),
        ("NVIDIA H200", 0.5),
        ("NVIDIA H100 PCIe", 494.5 / 756),
        ("NVIDIA A100-SXM4-80GB", 494.5 / 312),
        ("NVIDIA A10G", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_mfu_is_a_share_of_the_devices_peak(name: str, share: float | None) -> None:
    found = mfu(name, 6e9 * 16_483.333333333332, 0.2)
    assert found == (None if share is None else pytest.approx(share))


def test_a_cpu_has_no_metrics_of_a_gpu() -> None:
    meter = DeviceMeter(torch.device("cpu"), 6.0, "bfloat16")
    meter.add(3)
    assert meter.metrics() == {}


@pytest.mark.gpu
def test_a_gpu_has_metrics() -> None:
    device = torch.device("cuda:0")
    kept = torch.ones(2**28, device=device)  # 1 GiB
    meter = DeviceMeter(device, 6e9, "bfloat16")
    kept + kept
    meter.add(100)
    found = meter.metrics()
    assert found["gpu/allocated_gib"] >= 1
    assert found["gpu/peak_gib"] >= found["gpu/allocated_gib"] + 1
    names = {f"{name}/max" if name.endswith("_gib") else name for name in found}
    assert all(describe(name) for name in names)


def test_attention_that_a_gpu_may_have_is_named() -> None:
    assert {"auto", "segments", "flex"} <= {*usable_attention()}
