"""Settings of training backends: what does not go together is told at once."""

from __future__ import annotations

from collections.abc import Callable

Problems = Callable[..., list[str]]


def test_all_that_megatron_does_not_heed_is_told_at_once(problems: Problems) -> None:
    given = [
        "optim.name=muon",
        "train.compile=true",
        "train.offload=all",
        "train.gradient_checkpointing=selective",
        "train.ep_size=2",
        "train.gradient_sync=mini_batch",
        "train.shard=grad_op",
        "train.vision=trained",
        "run.deterministic=true",
    ]
    lines = problems(
        "", [*given, "algorithm.name=ppo", "critic.stage=model", "train.backend=megatron"]
    )
    (line,) = (one for one in lines if "does not heed" in one)
    for setting in given:
        key, _, value = setting.partition("=")
        told = "True" if value == "true" else value if value.isdigit() else repr(value)
        assert f"{key}={told}" in line
    assert "leave that out, or set train.backend=fsdp2" in line
    assert any(
        "algorithm.name='ppo' needs a critic or a reward model" in one for one in lines
    )
    given = ["reward.model.path=judge", "train.backend=megatron"]
    assert any(
        "reward.model needs a critic or a reward model" in one
        for one in problems("", given)
    )
    (line,) = problems("", ["model.lora.rank=4", "train.backend=megatron"])
    assert "train.backend='megatron' does not heed model.lora.rank=4" in line
