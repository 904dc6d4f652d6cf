"""A train backend of one's own plugs in, is held to the contract, and trains as ``plain`` does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from agentrl.config import load_config
from agentrl.errors import ConfigError
from agentrl.training import OptimSpec, check_backend
from agentrl.training.backends.find import absolute, find_backend
from tests.kit.marks import wide_but
from tests.training.harness import make_actor, make_batch, prepared, update
from tests.training.own_backend import Loop

OWN = "tests.training.own_backend:"
OPTIM = OptimSpec(lr=1e-3)


@pytest.mark.parametrize("backend", ["plain", "fsdp2", f"{OWN}Loop"])
def test_these_hold_the_contract(model_path: str, backend: str) -> None:
    check_backend(backend, model_path)


BROKEN = {
    "Absent": "build() loads the model of a folder: ConfigError('the machine has no such device')",
    "AnotherModel": "info is that of the model: parameters and vocabulary are (1, 96), not",
    "OnlyTrains": "also of a frozen model: AssertionError('a frozen model')",
    "HalfBlind": "the logprobs of the wanted tokens, also of a frozen model: old_logprobs is",
    "Unnamed": "whole tensors by the folder's names, at first: ['model.embed_tokens.weight']",
    "SumsNothing": "checksums() are those of weights(), at first: ",
    "Averaging": "run() gives every tensor the gradient of plain: that of model.norm.weight is off",
    "Overwrites": "run() adds to the gradients of the runs before: grad_norm of two runs is",
    "Careless": "step() only forgets a gradient that is not finite: not_finite is None",
    "LosesMoments": "after a step of what was kept away: model.embed_tokens.weight differs",
    "Late": "exactly: the weights are not those of begin_save()",
    "Forgetful": "load() goes on from what save() wrote, exactly: the next step moves weights",
    "Rounds": "export() writes a Hugging Face folder: plain loads other weights of it",
}


@pytest.mark.parametrize("backend", wide_but([*BROKEN][::6], BROKEN))
def test_each_broken_rule_is_named(model_path: str, backend: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_backend(f"{OWN}{backend}", model_path)
    assert BROKEN[backend] in str(caught.value)


def test_a_backend_is_told_of_all_rules_that_it_breaks(model_path: str) -> None:
    with pytest.raises(ConfigError, match="breaks 1 rules"):
        check_backend(f"{OWN}Forgetful", model_path)
    with pytest.raises(
        ConfigError, match=r"run\(\) and step\(\) take optimizer step 1: "
    ) as caught:
        check_backend(f"{OWN}Careless", model_path)
    assert "weights() are whole tensors by the folder's names, at first" not in str(
        caught.value
    )


def test_two_steps_are_those_of_plain(model_path: str) -> None:
    file = Path(__file__).with_name("own_backend.py")
    named = absolute(f"{file.name}:Loop", file.parent)
    actors = [make_actor(model_path, optim=OPTIM, backend=one) for one in ("plain", named)]
    assert type(actors[1].backend).__name__ == Loop.__name__
    batch = make_batch()
    for _ in range(2):
        plain, own = (dict(update(one, prepared(one, batch)).means()) for one in actors)
        assert own == pytest.approx(plain, rel=1e-4, abs=1e-6)
    plain_weights, own_weights = (dict(one.weights()) for one in actors)
    assert plain_weights.keys() == own_weights.keys()
    for name, weight in plain_weights.items():
        torch.testing.assert_close(own_weights[name], weight, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "deepspeed",
            "='deepspeed' is unknown; choose one of fsdp2, megatron, plain, or name your own",
        ),
        ("json:loads", "must name a subclass of agentrl.training.TrainBackend"),
        ("nosuch.module:Name", "cannot be loaded"),
    ],
)
def test_what_is_no_backend_is_named(name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        find_backend(name)


def test_a_configuration_takes_a_backends_name() -> None:
    given = {"model": {"path": "m"}, "data": {"train": "t.jsonl"}}
    config = load_config({**given, "train": {"backend": f"{OWN}Loop"}})
    assert config.resolved_stages()[0].train.backend == f"{OWN}Loop"
    with pytest.raises(
        ConfigError, match=r"train\.backend must be fsdp2, megatron, plain or module:NAME"
    ):
        load_config({**given, "train": {"backend": "deepspeed"}})
