"""The weight probe: what rounding explains is bounded by what it was seen to be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agentrl.engines.probe import Probe, ProbeNoise
from agentrl.engines.torch import TorchEngine
from agentrl.weight_sync.verify import verify_probe

OWN = Probe((1, 2, 3), np.full(2, -10.0, np.float32))


def scores(distance: float) -> np.ndarray:
    """Logprobs that differ by so much from the trainer's."""
    return (OWN.logprobs + distance).astype(np.float32)


@pytest.mark.parametrize(
    ("first", "later", "agrees"),
    [
        (0.0097, 0.029, True),  # the noise of SGLang in bfloat16, threefold
        (0.0097, 0.09, False),  # an ignored update that moved every weight by .002
        (0.05, 0.14, True),  # a noisier model: three times its own
        (0.05, 0.16, False),
        (0.15, 0.19, True),
        (0.15, 0.21, False),  # never more than rounding is anywhere
    ],
)
def test_a_later_comparison_is_held_to_the_first(
    first: float, later: float, agrees: bool
) -> None:
    noise = ProbeNoise()
    assert noise.difference("server 0", OWN, scores(first), "bfloat16") == ""
    assert (noise.difference("server 0", OWN, scores(later), "bfloat16") == "") == agrees
    # another server has a first comparison of its own
    assert noise.difference("server 1", OWN, scores(0.19), "bfloat16") == ""


def test_a_mixture_may_send_other_tokens_elsewhere_each_time() -> None:
    routed = replace(OWN, routed=True)
    noise = ProbeNoise()
    for distance in (0.03, 0.8):
        assert noise.difference("server 0", routed, scores(distance), "bfloat16") == ""
    assert "at most 0.85 is rounding" in noise.difference(
        "server 0", routed, scores(0.9), "bfloat16"
    )
    # in float32 no two experts are so near to each other
    assert noise.difference("server 0", routed, scores(0.006), "float32")


def test_rounding_grows_with_the_logprobs() -> None:
    noise = ProbeNoise()
    noise.difference("server 0", OWN, scores(0.02), "bfloat16")
    twice = Probe(OWN.token_ids, 2 * OWN.logprobs)
    # 2 * 3 * 0.02
    assert noise.difference("server 0", twice, twice.logprobs - 0.115, "bfloat16") == ""
    assert noise.difference("server 0", twice, twice.logprobs - 0.125, "bfloat16")


@pytest.mark.parametrize(("dtype", "nats"), [("float32", 0.005), ("bfloat16", 0.03)])
def test_servers_of_one_program_differ_by_little(dtype: str, nats: float) -> None:
    assert OWN.rounding(dtype) == nats  # type: ignore[arg-type]


def test_an_update_that_a_bfloat16_engine_ignores_is_seen(tiny, start) -> None:
    """An engine that keeps its weights, while the trainer's move its logprobs by .09 nats."""
    engine: TorchEngine = start(tiny, dtype="bfloat16")
    ids = (3, 9, 27, 20, 60, 58)
    noise = ProbeNoise()
    own = next(iter(engine.score(ids).values()))
    verify_probe(engine, Probe(ids, own), "bfloat16", 1, noise)
    moved = Probe(ids, own + np.float32(0.09))
    with pytest.raises(Exception, match=r"publish\(2\) torch computes .* differ by 0\.09"):
        verify_probe(engine, moved, "bfloat16", 2, noise)
