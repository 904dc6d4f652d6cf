"""Models that see are trained on the numbers of transformers' own forward, and kept under the names
of their folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from agentrl.training import OptimSpec
from agentrl.training.models.lora_spec import LoraSpec
from agentrl.training.vision.vision_tower import VisionMode
from tests.tiny_vision import FAMILIES, write_qwen_vl
from tests.training.ranks import run_ranks
from tests.training.vision_batch import (
    Case,
    compare,
    make_actor,
    make_case,
    own_gradients,
    reference,
    whole_logits,
)
from tests.training.vision_rank import SPLITS

ALL = range(6)
MOVING = OptimSpec(lr=1e-3, clip_grad_norm=None)


@pytest.fixture(scope="module", params=FAMILIES)
def model(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    return write_qwen_vl(tmp_path_factory.mktemp("vl"), family=request.param)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def case(model: Path, run: Path) -> Case:
    return make_case(model, run)


@pytest.fixture(scope="module")
def expected(model: Path, case: Case) -> Any:
    return reference(model, case)


def moved(
    gradients: dict[str, torch.Tensor], vision: VisionMode
) -> dict[str, torch.Tensor]:
    """The gradients of what moves."""
    return {
        name: one
        for name, one in gradients.items()
        if vision == "trained" or ".visual." not in name
    }


@pytest.mark.wide
@pytest.mark.parametrize(
    ("vision", "spec"),
    [
        ("frozen", {"backend": "plain"}),
        ("trained", {"backend": "plain"}),
        ("frozen", {}),
        ("trained", {}),
        ("trained", {"backend": "plain", "gradient_checkpointing": True}),
        ("trained", {"gradient_checkpointing": "selective"}),
    ],
)
def test_every_gradient_is_the_familys(
    vision: VisionMode,
    spec: dict[str, Any],
    model: Path,
    run: Path,
    case: Case,
    expected: Any,
) -> None:
    logprobs, gradients = expected
    assert any(".visual." in name for name in gradients)
    actor = make_actor(model, run, vision=vision, **spec)
    for parts in ((ALL,), ((0, 1, 2), (3, 4), (5,))):
        shard = case.shard(ALL, *parts)
        found = actor.logprobs(shard)["old_logprobs"]
        assert np.abs(found - logprobs).max() < 1e-5
        compare(own_gradients(actor, case, shard), moved(gradients, vision))
        actor.backend.step(0.0, None)


def test_a_row_has_a_shared_image_once_and_each_image_runs_once(
    model: Path, run: Path, case: Case
) -> None:
    actor = make_actor(model, run, backend="plain")
    (row,) = actor.packed(case.shard(ALL, ALL))
    # both images of the first group, the first one of the second, and its other's second
    assert len(row.media) == 4
    assert len(set(row.media["sha256"])) == 3
    ran = []
    actor.backend.model.tower.module.register_forward_pre_hook(
        lambda _module, _args, given: ran.append(given["grid_thw"].tolist()),
        with_kwargs=True,
    )
    actor.logprobs(case.shard(ALL, (0, 1, 2, 3), (4, 5)))
    (grids,) = ran
    assert sorted(grids) == [[1, 2, 2], [1, 4, 6], [1, 6, 6]]


def test_rows_of_text_leave_a_trained_tower_where_it_is(
    model: Path, run: Path, case: Case
) -> None:
    actor = make_actor(model, run, backend="plain", vision="trained")
    gradients = own_gradients(actor, case, case.shard((4, 5), (0, 1)))
    tower = {name: one for name, one in gradients.items() if ".visual." in name}
    assert tower.keys() == {
        name.removeprefix("hf.") for name in actor.backend.state() if ".visual." in name
    }
    assert not any(one.any() for one in tower.values())


@pytest.mark.parametrize("vision", get_args(VisionMode))
def test_backends_round_alike_in_bfloat16(
    vision: VisionMode, model: Path, run: Path, case: Case, expected: Any
) -> None:
    shard = case.shard(ALL, (0, 1, 2, 3), (4, 5))
    found = []
    for backend in ("plain", "fsdp2"):
        actor = make_actor(model, run, backend=backend, vision=vision, dtype="bfloat16")
        logprobs = actor.logprobs(shard)["old_logprobs"]
        assert np.abs(logprobs - expected[0]).max() < 0.05
        found.append((logprobs, own_gradients(actor, case, shard)))
    (plain, gradients), (fsdp2, others) = found
    assert (plain == fsdp2).all()
    assert gradients.keys() == others.keys() == moved(expected[1], vision).keys()
    for name, gradient in gradients.items():
        assert torch.equal(gradient, others[name])
        assert gradient.dtype == torch.float32


@pytest.mark.wide
@pytest.mark.parametrize("vision", get_args(VisionMode))
@pytest.mark.parametrize("backend", ["plain", "fsdp2"])
def test_what_moves_is_kept_under_the_folders_names(
    vision: VisionMode, backend: str, model: Path, run: Path, case: Case, tmp_path: Path
) -> None:
    actor = make_actor(model, run, optim=MOVING, backend=backend, vision=vision)
    shard = case.shard(ALL, ALL)
    own_gradients(actor, case, shard)
    actor.backend.step(1.0, None)
    started = load_file(model / "model.safetensors")
    now = dict(actor.backend.weights(torch.float32))
    assert now.keys() == started.keys()
    still = {name for name, one in now.items() if torch.equal(one, started[name])}
    assert still == ({n for n in now if "visual." in n} if vision == "frozen" else set())
    trained = sum(one.requires_grad for one in actor.backend.state().values())
    (optimizer,) = actor.backend.optimizers
    assert len(optimizer.state) == trained == len(now) - len(still)

    actor.save(tmp_path / "actor")
    resumed = make_actor(model, run, optim=MOVING, backend="plain", vision=vision)
    resumed.load(tmp_path / "actor")
    assert resumed.checksum() == actor.checksum()
    for one in (actor, resumed):
        own_gradients(one, case, shard)
        one.backend.step(1.0, None)
    after = dict(resumed.backend.weights(torch.float32))
    for name, tensor in actor.backend.weights(torch.float32):
        torch.testing.assert_close(after[name], tensor, rtol=1e-5, atol=1e-6)

    actor.export(tmp_path / "model")
    assert load_file(tmp_path / "model" / "model.safetensors").keys() == started.keys()
    again = make_actor(tmp_path / "model", run, backend="plain")
    found = again.logprobs(shard)["old_logprobs"]
    assert np.abs(found - actor.logprobs(shard)["old_logprobs"]).max() < 1e-5
    exported = make_case(tmp_path / "model", run)
    assert np.abs(reference(tmp_path / "model", exported)[0] - found).max() < 1e-5
    assert not np.allclose(
        whole_logits(model, case), whole_logits(tmp_path / "model", case)
    )


def test_an_adapter_leaves_the_tower_out(model: Path, run: Path, case: Case) -> None:
    lora = LoraSpec(rank=4)
    actor = make_actor(model, run, optim=MOVING, backend="plain", lora=lora)
    record = actor.backend.model.lora.record
    assert record.layers
    assert not any("visual" in name for name in record.layers)
    gradients = own_gradients(actor, case, case.shard(ALL, ALL))
    assert gradients
    assert all(".lora." in name and ".visual." not in name for name in gradients)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_two_ranks_of_which_one_shows_no_image(family: Any, tmp_path: Path) -> None:
    model = write_qwen_vl(tmp_path / "model", family=family)
    case = make_case(model, tmp_path / "run")
    logprobs, gradients = reference(model, case)
    run_ranks("tests.training.vision_rank", 2, str(model), str(tmp_path))
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2)]
    starts = case.batch.cu_seqlens
    for vision in get_args(VisionMode):
        for name, parts in SPLITS.items():
            found = [own[vision, name] for own in ranks]
            for one, (rows, _) in zip(found, parts, strict=True):
                compare(one["gradients"], moved(gradients, vision))
                own = np.concatenate(
                    [logprobs[starts[row] : starts[row + 1]] for row in rows]
                )
                assert np.abs(one["logprobs"] - own).max() < 1e-5
            # both of them need the two images of the first group in the second split
            assert sum(one["prepared"] for one in found) == 3
            folder = tmp_path / f"{vision} {name}"
            assert len(list((folder / "pixels").rglob("*.npz"))) == 3
            loaded = make_actor(model, folder, optim=MOVING, backend="plain", vision=vision)
            loaded.load(folder / "actor")
            for key, tensor in loaded.backend.weights(torch.float32):
                assert torch.equal(tensor, found[0]["weights"][key])
