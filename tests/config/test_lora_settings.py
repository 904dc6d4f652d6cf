"""Settings of adapters: what does not go together, and which roles there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.run.build import StageRecipe
from agentrl.run.policy_source import named_policy
from agentrl.run.stages import _trainer_bytes, role_specs
from agentrl.training.models.lora_spec import LoraSpec
from agentrl.training.models.tiny import build_tiny_model
from tests.config.conftest import MINIMAL
from tests.run.tiny_task import demonstrations
from tests.training.harness import write_model

Problems = Callable[..., list[str]]
Write = Callable[..., Path]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["model.lora.rank=0"], "model.lora.rank must be at least 1, got 0"),
        (
            ["model.lora.targets=[q_proj]"],
            "model.lora.rank is needed beside alpha and targets, got none; set it, or leave them",
        ),
        (
            ["model.lora.rank=4", "optim.name=muon"],
            "optim.name='muon' moves whole hidden matrices, which stay as they are beside an "
            "adapter; set optim.name=adamw, or leave the adapter out",
        ),
        (
            ["model.lora.rank=4", "train.vision=trained"],
            "train.vision='trained' moves the tower, which stays as it is beside an adapter; leave "
            "it out, or model.lora",
        ),
        (
            ["critic.lora.rank=4"],
            "critic.lora does nothing with algorithm.name='grpo' as it is set; leave it out",
        ),
        (
            [
                *("model.lora.rank=4", "algorithm.kl_coef=0.1"),
                *("placement.pools.aside.world_size=1", "placement.roles.reference=aside"),
            ],
            "placement.roles.reference",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(
    problems: Problems, overrides: list[str], told: str
) -> None:
    (line,) = problems("", overrides)
    assert told in line


def test_an_adapter_to_go_on_from_belongs_to_the_first_stage(problems: Problems) -> None:
    stages = "stages:\n  - {name: one}\n  - {name: two}\n"
    (line,) = problems(stages, ["model.lora.path=adapter"])
    assert (
        "model.lora.path='adapter' is an adapter of model.path, and the stage 'two' starts from "
        "the merged weights of 'one'; leave it out and set model.lora.rank, or train one stage"
    ) in line


def test_a_stage_that_is_skipped_says_nothing_of_adapters(write: Write) -> None:
    stages = (
        "stages:\n  - {name: warmup, when: built, optim: {name: muon}}\n  - {name: rl}\n"
    )
    for own in ("rank=8", "path=adapter"):
        config = load_config(write(stages), [f"model.lora.{own}"])
        (stage,) = config.resolved_stages()
        assert stage.model.lora.given


def recipe(write: Write, model: Path, *overrides: str) -> StageRecipe:
    (stage,) = load_config(write("", head=MINIMAL), overrides).resolved_stages()
    others = {"critic": model, "reference": None}
    return StageRecipe(stage, stage.make_algorithm(), model, None, 4, others)


def test_the_reference_of_an_adapter_is_no_second_model(
    write: Write, tmp_path: Path
) -> None:
    model = tmp_path / "some-model"
    sizes = {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "ff": 16}
    build_tiny_model(
        model, demonstrations(0), num_demonstrations=40, vocab_size=300, **sizes
    )
    kl = "algorithm.kl_coef=0.1"
    assert set(role_specs(recipe(write, model, kl))) == {"actor", "reference"}
    own = role_specs(recipe(write, model, kl, "model.lora.rank=4"))
    assert set(own) == {"actor"}
    assert own["actor"].lora == LoraSpec(rank=4)
    # of another folder there is one
    elsewhere = recipe(write, model, kl, "model.lora.rank=4", f"reference.path={model}")
    assert set(role_specs(elsewhere)) == {"actor", "reference"}
    both = recipe(
        write, model, "algorithm.name=ppo", "critic.stage=model", "model.lora.rank=4",
        "critic.lora.rank=2", "critic.lora.targets=[q_proj]",
    )  # fmt: skip
    specs = role_specs(both)
    assert specs["critic"].lora.rank == 2
    assert specs["critic"].lora_seed != specs["actor"].lora_seed
    # frozen weights have 4 bytes of the 12 that a rank brings to a server's GPU
    few, all_trained = (
        _trainer_bytes(replace(recipe(write, model, *more), others={}))
        for more in (["model.lora.rank=4"], [])
    )
    assert 3 * few == all_trained


def test_an_adapter_is_found_beside_the_file_and_not_played(
    write: Write, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "some-model")
    lora = "model.lora.path=adapter"
    spec = role_specs(recipe(write, model, lora))["actor"]
    assert spec.lora == LoraSpec(path=str(tmp_path / "adapter"))
    config = write("", head=MINIMAL.replace("some/model", str(model)))
    with pytest.raises(
        ConfigError, match=r"is an adapter, and a policy is played from the folder"
    ):
        named_policy(config, None, [lora], command="agentrl eval")
