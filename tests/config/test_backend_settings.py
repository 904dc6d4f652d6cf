"""Settings of training backends: what does not go together is told at once."""

from __future__ import annotations

from collections.abc import Callable

Problems = Callable[..., list[str]]


def test_all_that_megatron_does_not_heed_is_told_at_once(problems: Problems) -> None:
    given = {
        "optim.name": "optim.name=muon",
        "train.compile": "train.compile=true",
        "train.offload": "train.offload=all",
        "train.gradient_checkpointing": "train.gradient_checkpointing=selective",
        "train.ep_size": "train.ep_size=2",
        "algorithm.name": "algorithm.name=ppo",
    }
    own = [*given.values(), "critic.stage=model", "train.backend=megatron"]
    lines = problems("", own)
    said = "as it is set does not go with train.backend='megatron'"
    told = {key for key in given if any(f"{key} {said}" in line for line in lines)}
    assert told == given.keys()
    (line,) = problems("", ["model.lora.rank=4", "train.backend=megatron"])
    assert f"model.lora {said}" in line
    assert "set train.backend=fsdp2" in line
