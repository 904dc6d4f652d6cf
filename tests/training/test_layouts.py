"""Layouts: every division of ranks gives one rank's losses and gradients, and a wrong one is seen.

A gradient's error is the largest of a parameter, relative to the parameter's own largest gradient,
or to a thousandth of the model's where that is more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.core_model_loading import revert_weight_conversion

from agentrl.training import DistSpec, join, leave
from agentrl.training.fsdp.checkpoint_export import export_checkpoint
from tests.tiny_models import SLIDING, write_family
from tests.training.harness import VOCAB, make_actor, write_model
from tests.training.layout_rank import (
    BATCHES,
    BUGS,
    LAYOUTS,
    SQUARE,
    Layout,
    Ranks,
    compared,
    trained,
)
from tests.training.ranks import run_ranks

REPOSITORY = Path(__file__).parents[2]
World = Callable[[int], Mapping[str, Any]]
"""What a world of a size computed."""

BOUND = {"float64": (1e-9, 1e-10), "float32": (1e-5, 1e-5)}
"""Of a gradient's error and of a loss's, relative."""


def marked(layouts: Iterable[Layout]) -> list[Any]:
    """Two ranks are tried at every commit, 2 x 2 first of all, what is beyond them in parts."""
    first, beyond = pytest.mark.invariant, pytest.mark.wide("layouts beyond 2 x 2")
    return [
        pytest.param(
            own,
            marks=[
                pytest.mark.slow,
                *([first] if own == SQUARE else [beyond] if own.world_size > 2 else []),
            ],
            id=own.name,
        )
        for own in layouts
    ]


TRAINED = [own for own in LAYOUTS if own.is_trained]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_model(folder / "qwen3")
    write_model(folder / "untied", tie_word_embeddings=False)
    write_model(folder / "sliding", **SLIDING)
    shape: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "initializer_range": 0.08,
        "max_position_embeddings": 512,
    }
    torch.manual_seed(7)
    Qwen2ForCausalLM(Qwen2Config(**shape)).save_pretrained(folder / "qwen2")
    llama = LlamaConfig(**shape, attention_bias=True, mlp_bias=True)
    LlamaForCausalLM(llama).save_pretrained(folder / "llama")
    for name in ("qwen2", "llama"):
        (folder / name / "tokenizer.json").write_text("{}")
    write_family(folder / "experts", "qwen3_moe", vocab_size=VOCAB, num_experts=4)
    write_family(folder / "mixtral", "mixtral", vocab_size=VOCAB, num_local_experts=4)
    return folder


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out")


@pytest.fixture(scope="module")
def chosen(request: pytest.FixtureRequest) -> frozenset[str]:
    """The layouts and bugs that this session looks at."""
    cases = [
        item.callspec.params for item in request.session.items if item.path == request.path
    ]  # type: ignore[attr-defined]
    return frozenset(one["own"].name if "own" in one else one["name"] for one in cases)


@pytest.fixture(scope="module")
def alone(models: Path, out: Path, chosen: frozenset[str]) -> Iterator[Mapping[str, Any]]:
    """One rank's answers by model and precision, and its checkpoint for the others."""
    place = DistSpec()
    join(place)
    wanted: dict[tuple[str, str], set[str]] = {}
    bugs = [layout for name, (*_, layout) in BUGS.items() if name in chosen]
    looked_at = [own for own in LAYOUTS if own.name in chosen]
    for own in (*looked_at, *bugs):
        wanted.setdefault((own.model, own.dtype), set()).update(own.algorithms)
    found: dict[str, Any] = {}
    for (model, dtype), algorithms in wanted.items():
        own = Layout(1, model=model, dtype=dtype, algorithms=tuple(sorted(algorithms)))
        found[f"{model} {dtype}"] = dict(compared(models, own, Ranks(place)))
    for model in sorted({own.model for own in looked_at if own.is_trained}):
        found[f"{model} trained"] = trained(
            models, Layout(1, model=model), Ranks(place), out
        )
    yield found
    leave()


@pytest.fixture(scope="module")
def world(
    models: Path, out: Path, alone: Mapping[str, Any], chosen: frozenset[str]
) -> World:
    """One start of a world's ranks, when the first test asks for it."""
    assert alone, "its checkpoints are read"

    tried: set[int] = set()

    @cache
    def run_world(size: int) -> Mapping[str, Any]:
        assert size not in tried, "its ranks failed for a test before"
        tried.add(size)
        run_ranks(
            "tests.training.layout_rank", size, str(models), str(out), *sorted(chosen)
        )
        found: Mapping[str, Any] = torch.load(out / f"world{size}.pt", weights_only=False)
        return found

    return run_world


def gradient_error(found: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    whole = max(float(one.abs().max()) for one in expected["gradients"].values())
    return max(
        float((found["gradients"][name] - one).abs().max())
        / max(float(one.abs().max()), 1e-3 * whole)
        for name, one in expected["gradients"].items()
    )


def numbers(found: Mapping[str, Any]) -> dict[str, float]:
    """Statistics but for shares of tokens, one of which may lie on its border."""
    return {name: value for name, value in found["stats"].items() if "frac" not in name}


@pytest.mark.parametrize("own", marked(LAYOUTS))
def test_a_layout_changes_no_loss_and_no_gradient(
    world: World, alone: Mapping[str, Any], own: Layout
) -> None:
    cases = world(own.world_size)["cases"][own.name]
    expected = alone[f"{own.model} {own.dtype}"]
    of_gradient, of_loss = BOUND[own.dtype]
    assert cases, "nothing was compared"
    for case, found in cases.items():
        assert gradient_error(found, expected[case]) <= of_gradient, case
        assert numbers(found) == pytest.approx(
            numbers(expected[case]), rel=of_loss, abs=of_loss
        ), case


@pytest.mark.parametrize("own", marked(TRAINED))
def test_clipped_steps_end_in_equal_weights(
    world: World, alone: Mapping[str, Any], own: Layout
) -> None:
    found = world(own.world_size)["trained"][own.name]
    expected = alone[f"{own.model} trained"]
    for step, other in zip(found["stats"], expected["stats"], strict=True):
        assert step == pytest.approx(other, rel=1e-9)
        assert step["optim/grad_norm"] > 0.1, "nothing is clipped"
    assert found["weights"].keys() == expected["weights"].keys()
    for name, weight in expected["weights"].items():
        assert found["weights"][name].dtype == torch.float64
        assert (found["weights"][name] - weight).abs().max() <= 1e-10, name
    assert found["sums agree"], "checksums of shards are those of what is published"
    assert found["refused"]["optim/not_finite"] == 1.0


@pytest.mark.parametrize("own", marked(TRAINED))
def test_a_checkpoint_goes_on_in_any_layout(
    world: World,
    alone: Mapping[str, Any],
    models: Path,
    own: Layout,
    tmp_path: Path,
) -> None:
    found = world(own.world_size)["trained"][own.name]
    # one rank's checkpoint, on this layout
    assert found["resumed"] == pytest.approx(
        alone[f"{own.model} trained"]["resumed"], rel=1e-9
    )
    # this layout's, on one rank
    actor = make_actor(str(models / own.model), "sft", dtype="float64", optim=own.moving)
    actor.load(found["folder"])
    for name, weight in actor.weights():
        assert torch.equal(weight, found["weights"][name]), name
    step = Ranks(DistSpec()).update(actor, BATCHES["plain"](), 30)
    assert step == pytest.approx(found["next"], rel=1e-9)
    # and as a folder: what the ranks wrote, and what `agentrl export model` makes of the checkpoint
    export_checkpoint(found["folder"], tmp_path / "exported", dtype="float64")
    for folder in (found["folder"] / "export", tmp_path / "exported"):
        exported = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
        own = revert_weight_conversion(exported, dict(exported.named_parameters()))
        for name, weight in own.items():
            assert torch.equal(weight, found["weights"][name]), name


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_seen(world: World, alone: Mapping[str, Any], name: str) -> None:
    layout = BUGS[name][-1]
    found = world(layout.world_size)["bugs"][name]
    expected = alone["qwen3 float64"]
    assert max(gradient_error(one, expected[case]) for case, one in found.items()) > 1e-4
