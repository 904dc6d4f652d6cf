"""What changed alone crosses a link to two workers of another node, whose real servers serve it."""

from __future__ import annotations

import argparse
import os
import shutil

import pytest

from benchmarks.delta import link
from benchmarks.figures import Figures

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.tooling,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for network namespaces"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="needs ip (iproute2)"),
]


def test_servers_of_far_workers_serve_what_changed_and_the_link_carries_no_more(
    python: str,
) -> None:
    figures = Figures()
    # each publish compares checksums and digests of every tensor, and the probe
    link(figures, argparse.Namespace(shape="8M", lr=1e-6, sglang=python))
    full, delta = figures.rows
    # two whole copies, one for each worker, would be 2
    assert 1 < full.value < 1.1
    assert 0 < delta.value < 0.1
