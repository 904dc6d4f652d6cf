"""The Megatron backend holds the contract, with plain's numbers; what it lacks is named."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.errors import ConfigError, StoreError
from agentrl.training import DistSpec, OptimSpec, check_backend
from agentrl.training.backends.backend import RoleModel
from agentrl.training.backends.find import find_backend
from agentrl.training.models.lora_spec import LoraSpec
from agentrl.training.models.packed_model import ModelSpec
from agentrl.training.parallel.process_group import Sharding
from tests.kit.marks import wide_but
from tests.tiny_models import SLIDING, write_family
from tests.training.cuda_stand_in import cuda_stand_in
from tests.training.harness import (
    PLAIN,
    VOCAB,
    make_actor,
    make_batch,
    prepared,
    update,
    write_model,
)

pytestmark = [
    # Megatron warns of its own calls, and of packages that it does without here.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Apex is not installed"),
    pytest.mark.filterwarnings("ignore:full scope is deprecated"),
]

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

FAMILIES = wide_but(("qwen3_moe",), ("llama", "qwen2", "qwen3", "qwen3_moe"))

CURRENT_DEVICE = torch.cuda.current_device


@pytest.fixture(autouse=True)
def _cuda() -> Iterator[None]:
    with cuda_stand_in():
        yield


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_holds_the_contract(tmp_path: Path, family: str) -> None:
    write_family(tmp_path, family, vocab_size=VOCAB, tie_word_embeddings=family == "qwen3")
    check_backend("megatron", tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("recompute", [False, True])
def test_every_gradient_is_that_of_plain(
    tmp_path: Path, family: str, recompute: bool
) -> None:
    batch = make_batch(temperature=0.9)
    # one that is an input, as a policy may sample it
    padding = int(batch.token_ids[1])
    write_family(tmp_path, family, vocab_size=VOCAB, pad_token_id=padding)
    spec: dict[str, Any] = {"optim": PLAIN, "gradient_checkpointing": recompute}
    plain = make_actor(str(tmp_path), backend="plain", **spec)
    own = make_actor(str(tmp_path), backend="megatron", **spec)
    batch = prepared(plain, batch)
    found, expected = (dict(update(one, batch, 30).means()) for one in (own, plain))
    routed = {name for name in expected if name.startswith("moe/")}
    assert bool(routed) == (family == "qwen3_moe")
    for name in ("policy/loss", "optim/grad_norm", "policy/entropy", *routed):
        assert found[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-7)
    backend: Any = own.backend
    # of AdamW with beta_1 = 0 the first moment is the gradient
    moments = {
        name: part.clone()
        for name, part in backend._values(
            lambda one: backend.optimizer.moment(one, "exp_avg")
        )
    }
    state = {
        name.removeprefix("hf."): plain.backend.optimizers[0].state[one]["exp_avg"]  # type: ignore[attr-defined]
        for name, one in plain.backend.state().items()
    }
    assert moments.keys() == state.keys()
    whole = max(float(one.abs().max()) for one in state.values())
    for name, gradient in state.items():
        size = max(float(gradient.abs().max()), 1e-3 * whole)
        assert float((moments[name] - gradient).abs().max()) < 1e-5 * size, name


@pytest.mark.slow
def test_a_checkpoint_of_fsdp2_goes_on_and_back(model_path: str, tmp_path: Path) -> None:
    optim = OptimSpec(lr=1e-3)
    first = make_actor(model_path, optim=optim, backend="fsdp2")
    batch = prepared(first, make_batch())
    update(first, batch)
    first.save(tmp_path / "fsdp2")
    own = make_actor(model_path, optim=optim, backend="megatron")
    own.load(tmp_path / "fsdp2")
    assert own.steps == 1
    update(first, batch)
    update(own, batch)
    own.save(tmp_path / "megatron")
    back = make_actor(model_path, optim=optim, backend="fsdp2")
    back.load(tmp_path / "megatron")
    for one in (first, back):
        update(one, batch)
    found, expected = dict(back.weights("float32")), dict(first.weights("float32"))
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"compile": True}, "does not heed TrainConfig.compile=True"),
        ({"offload": "all"}, "TrainConfig.offload='all'"),
        ({"deterministic": True}, "RunSection.deterministic=True"),
        ({"dtype": "float64"}, "ModelConfig.dtype='float64'"),
        (
            {"sharding": Sharding("hybrid", 1, "mini_batch", ep=2)},
            "ep_size=2, TrainConfig.gradient_sync='mini_batch', TrainConfig.shard='hybrid'",
        ),
        (
            {"lora": LoraSpec(rank=2)},
            "'megatron' trains no adapters, and LoraSpec asks for one",
        ),
        (
            {"gradient_checkpointing": "selective"},
            "gradient_checkpointing='selective'",
        ),
        ({"place": DistSpec(sp=2, world_size=1)}, "PlacementConfig.sp_size=2"),
        ({"place": DistSpec(pp=3)}, r"pp_size must divide the 2 layers of"),
        ({"place": DistSpec(tp=4)}, r"tp_size must divide the 2 key heads of"),
        ({"place": DistSpec(tp=8)}, r"tp_size must divide the 4 attention heads of"),
        (
            {"optim": OptimSpec(name="muon")},
            "does not heed OptimSpec.name='muon'; leave that out",
        ),
    ],
)
def test_what_it_lacks_is_named(
    model_path: str, settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        make_actor(model_path, backend="megatron", **settings)


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"vocab_size": 97}, "the 97 entries of the vocabulary of"),
        ({"intermediate_size": 49}, "the 49 units of each MLP of"),
        ({"num_experts": 3}, "the 3 experts of each mixture of"),
    ],
)
def test_what_two_ranks_cannot_share_is_named(
    tmp_path: Path, sizes: dict[str, int], told: str
) -> None:
    family = "qwen3_moe" if "num_experts" in sizes else "llama"
    write_family(tmp_path, family, **{"vocab_size": VOCAB} | sizes)
    with pytest.raises(
        ConfigError, match=f"tp_size must divide {told}.* got 2; set a divisor"
    ):
        make_actor(str(tmp_path), backend="megatron", place=DistSpec(tp=2))


@pytest.mark.parametrize("kind", ["values", "scores"])
def test_a_critic_and_a_reward_model_are_refused(model_path: str, kind: Any) -> None:
    spec = ModelSpec(model_path, backend="megatron")
    with pytest.raises(
        ConfigError, match=rf"trains policies alone, and .* \({kind}\) is asked"
    ):
        find_backend("megatron").build(spec, RoleModel(kind), DistSpec())


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_process_without_a_gpu_is_refused(
    model_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", CURRENT_DEVICE)
    with pytest.raises(ConfigError, match=r"needs PlacementConfig\.device=cuda, because"):
        make_actor(model_path, backend="megatron")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"optim": OptimSpec(name="muon")},
            r"optimizer\.\d\.\S+ is something else or missing",
        ),
        ({"lora": LoraSpec(rank=2)}, r"embed_tokens\S+ is something else or missing"),
    ],
)
def test_a_checkpoint_of_another_optimizer_or_of_an_adapter_is_refused_before_it_is_read(
    model_path: str, tmp_path: Path, settings: dict[str, Any], told: str
) -> None:
    other = make_actor(model_path, backend="fsdp2", **settings)
    update(other, prepared(other, make_batch()))
    other.save(tmp_path / "other")
    own = make_actor(model_path, backend="megatron")
    before = own.checksum("float32")
    with pytest.raises(StoreError, match=rf"cannot be resumed under .*megatron.*{told}"):
        own.load(tmp_path / "other")
    assert own.checksum("float32") == before


def test_weights_without_a_place_are_named(tmp_path: Path) -> None:
    write_family(tmp_path, "llama", vocab_size=VOCAB, mlp_bias=True)
    with pytest.raises(
        ConfigError, match=r"no place for 'model\.layers\.0\.mlp\.\w+\.bias' and 5 "
    ):
        make_actor(str(tmp_path), backend="megatron")


def test_another_family_is_named_with_those_that_it_computes(tmp_path: Path) -> None:
    write_family(tmp_path / "experts", "mixtral", vocab_size=VOCAB)
    with pytest.raises(
        ConfigError, match=r"llama, qwen2, qwen3, qwen3_moe .* got 'mixtral'"
    ):
        make_actor(str(tmp_path / "experts"), backend="megatron")
    write_model(tmp_path / "sliding", **SLIDING)
    with pytest.raises(ConfigError, match="without sliding windows"):
        make_actor(str(tmp_path / "sliding"), backend="megatron")


@pytest.mark.parametrize(
    ("release", "told"),
    [
        (None, r"needs megatron-core 0\.16\.\*, which is not installed; `pip install"),
        ("0.17.0", r"needs megatron-core 0\.16\.\*, .* got 0\.17\.0"),
    ],
)
def test_an_absent_or_untested_release_is_named(
    release: str | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [
        one for one in sys.modules if one.startswith("agentrl.training.backends.megatron")
    ]:
        monkeypatch.delitem(sys.modules, name)

    def version(name: str) -> str:
        if release is None:
            raise PackageNotFoundError(name)
        return release

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(ConfigError, match=told):
        find_backend("megatron")
