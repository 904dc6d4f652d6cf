"""LoRA: what is trained, kept, published and exported of a model with adapters, and what is
refused."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from agentrl.algorithms import make_algorithm
from agentrl.cli.main import run as run_command_line
from agentrl.engines.weights import weights_digest
from agentrl.errors import ConfigError, DataError, StoreError
from agentrl.store import RunDirectory
from agentrl.training import (
    Actor,
    Critic,
    CriticSpec,
    DistSpec,
    OptimSpec,
    Reference,
    ReferenceSpec,
    join,
)
from agentrl.training.fsdp.checkpoint_export import export_checkpoint
from agentrl.training.models.lora_spec import LoraSpec
from agentrl.training.models.peft_folder import CONFIG, WEIGHTS
from agentrl.types import SegmentKind
from agentrl.weight_sync.served_copy import ServedCopy
from tests.tiny_models import write_family
from tests.training.harness import (
    VOCAB,
    make_actor,
    make_batch,
    prepared,
    update,
    update_shards,
    write_model,
)
from tests.training.ranks import run_ranks

BATCH = make_batch(kind=SegmentKind.TARGET)
MOVING = OptimSpec(lr=1e-2)
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def lora_actor(path: str | Path, lora: LoraSpec | None = None, **settings: Any) -> Actor:
    settings = {
        "backend": "plain",
        "optim": MOVING,
        "lora": lora or LoraSpec(rank=4),
    } | settings
    return make_actor(str(path), "sft", **settings)


def weights(actor: Actor, dtype: Any = None) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in actor.weights(dtype)}


def trained(actor: Actor) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix("hf."): one.detach()
        for name, one in actor.backend.state().items()
        if one.requires_grad
    }


def parameter_bytes() -> int:
    """Of all parameters that live in this process."""
    gc.collect()
    found = [one for one in gc.get_objects() if type(one) is torch.nn.Parameter]
    return sum({one.data_ptr(): one.nbytes for one in found}.values())


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("untied"), tie_word_embeddings=False)


@pytest.fixture(scope="module")
def moved(model_path: str, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """An actor after three steps, its checkpoint, and that checkpoint as peft has it."""
    folder = tmp_path_factory.mktemp("moved")
    actor = lora_actor(model_path)
    for _ in range(3):
        update(actor, BATCH)
    actor.save(folder / "checkpoint")
    export_checkpoint(folder / "checkpoint", folder / "adapter")
    return {"folder": folder, "weights": weights(actor), "trained": trained(actor)}


def test_the_base_stays_in_bfloat16_and_what_moves_is_float32(model_path: str) -> None:
    actor = lora_actor(model_path, dtype="bfloat16", backend="fsdp2")
    before = weights(actor)
    found = [dict(update(actor, BATCH).means())["policy/loss"] for _ in range(3)]
    assert found[2] < found[1] < found[0]
    kept: dict[bool, set[torch.dtype]] = {True: set(), False: set()}
    for one in actor.backend.state().values():
        kept[one.requires_grad].add(one.dtype)
    assert kept == {True: {torch.float32}, False: {torch.bfloat16}}
    (optimizer,) = actor.backend.optimizers
    moments = {one for value in optimizer.state.values() for one in value.values()}
    assert {one.dtype for one in moments} == {torch.float32}
    changed = {
        name for name, one in weights(actor).items() if not torch.equal(one, before[name])
    }
    assert {name.split(".")[-2] for name in changed} == set(LINEAR)
    assert len(changed) == 2 * len(LINEAR)


def test_backends_have_one_number(model_path: str) -> None:
    found = []
    for backend in ("plain", "fsdp2"):
        actor = lora_actor(model_path, backend=backend, dtype="float64")
        found.append([dict(update(actor, BATCH).means())["policy/loss"] for _ in range(3)])
    assert found[0] == pytest.approx(found[1], rel=1e-12)


def test_what_is_published_is_the_base_and_the_product_of_the_factors(
    model_path: str, moved: Mapping[str, Any]
) -> None:
    base = AutoModelForCausalLM.from_pretrained(model_path).state_dict()
    factors = moved["trained"]
    for name, tensor in moved["weights"].items():
        layer = name.removesuffix(".weight")
        expected = base[name].double()
        if f"{layer}.lora.A" in factors:
            a, b = (factors[f"{layer}.lora.{side}"].double() for side in "AB")
            # alpha is 32 by default
            expected = expected + 32 / 4 * b @ a
            assert not torch.equal(tensor, base[name])
        torch.testing.assert_close(tensor.double(), expected, rtol=1e-6, atol=1e-7)


def test_what_changes_between_publishes_is_what_the_adapter_touches(
    model_path: str,
) -> None:
    actor, copy = lora_actor(model_path), ServedCopy()
    for version in range(2):
        if version:
            update(actor, BATCH)
        names = [part.name for part in copy.renew(actor.parts(), version, changes=True)]
    sent = {name for name in names if copy.read(1, [name], changes=True)[0].bits.size}
    assert {name.split(".")[-2] for name in sent} == set(LINEAR)
    assert len(sent) == 2 * len(LINEAR)


def test_without_its_adapter_the_actor_is_the_reference(model_path: str) -> None:
    actor = lora_actor(model_path)
    batch = make_batch()
    shard = update_shards(actor, batch, 64, 1)[0]
    alone = parameter_bytes()
    actor.reference_logprobs(shard)
    assert parameter_bytes() == alone
    # which a model of its own would not say
    reference = Reference(ReferenceSpec(model_path, backend="plain"), DistSpec())
    frozen = sum(one.nbytes for one in reference.backend.state().values())
    assert parameter_bytes() == alone + frozen
    expected = reference.logprobs(shard)["ref_logprobs"]
    for _ in range(2):
        update(actor, BATCH)
    with_adapter = actor.logprobs(shard)["old_logprobs"]
    np.testing.assert_array_equal(actor.reference_logprobs(shard)["ref_logprobs"], expected)
    assert np.abs(with_adapter - expected).max() > 1e-2
    # and it is on again
    np.testing.assert_array_equal(actor.logprobs(shard)["old_logprobs"], with_adapter)
    plain = make_actor(model_path, "sft", backend="plain")
    with pytest.raises(ConfigError, match=r"has no adapter to switch off.*LoraSpec\.rank"):
        plain.reference_logprobs(shard)


@pytest.mark.slow
def test_a_checkpoint_holds_what_is_trained_alone_and_goes_on_to_the_last_bit(
    tmp_path: Path,
) -> None:
    # wide enough that the rest of a checkpoint, its configuration and names, is small beside it
    shape = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8}
    path = write_model(tmp_path / "model", **shape, head_dim=64)
    for name, lora in (("adapter", LoraSpec(rank=8)), ("whole", None)):
        actor = make_actor(str(path), "sft", backend="plain", optim=MOVING, lora=lora)
        update(actor, BATCH)
        actor.save(tmp_path / name)
        if lora is not None:
            resumed = lora_actor(path, lora)
            resumed.load(tmp_path / name)
            own = [dict(update(one, BATCH)) for one in (actor, resumed)]
            assert own[0] == own[1]
            assert actor.checksum() == resumed.checksum()
    sizes = {
        name: sum(
            file.stat().st_size for file in (tmp_path / name).rglob("*") if file.is_file()
        )
        for name in ("adapter", "whole")
    }
    assert sizes["adapter"] <= 0.05 * sizes["whole"]


def test_an_export_is_read_back_and_merged(
    model_path: str, moved: Mapping[str, Any], tmp_path: Path
) -> None:
    adapter = moved["folder"] / "adapter"
    said = json.loads((adapter / CONFIG).read_text())
    assert (said["r"], said["lora_alpha"], said["peft_type"]) == (4, 32.0, "LORA")
    assert not (adapter / "config.json").exists()
    assert (adapter / "tokenizer.json").is_file()
    with safe_open(adapter / WEIGHTS, "pt") as file:
        assert file.metadata()["base_digest"] == weights_digest(Path(model_path))
    again = lora_actor(model_path, LoraSpec(path=str(adapter)))
    assert again.checksum() == {
        name: own for name, own in again.checksum().items() if name in moved["weights"]
    }
    for name, one in weights(again).items():
        assert torch.equal(one, moved["weights"][name]), name
    again.export(tmp_path / "export")
    checkpoint = moved["folder"] / "checkpoint"
    for dtype in ("float32", "bfloat16"):
        export_checkpoint(
            checkpoint, tmp_path / dtype, dtype=dtype, merges=True, shard_bytes=20000
        )
        model = AutoModelForCausalLM.from_pretrained(tmp_path / dtype)
        found = model.state_dict()
        for name, one in moved["weights"].items():
            assert torch.equal(found[name], one.to(getattr(torch, dtype))), name
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "export").state_dict()
    for name, one in moved["weights"].items():
        assert torch.equal(exported[name], one)


def test_the_command_line_exports_both_ways(
    moved: Mapping[str, Any], tmp_path: Path
) -> None:
    run = RunDirectory.create(tmp_path / "run")
    step = run.checkpoints_folder / "rl" / "step=000003"
    shutil.copytree(moved["folder"] / "checkpoint", step / "actor")
    (step / "manifest.json").write_text("{}")
    command = ["export", "model", str(run.root), "--to"]
    assert run_command_line([*command, str(tmp_path / "adapter")]) == 0
    assert (tmp_path / "adapter" / WEIGHTS).is_file()
    assert run_command_line([*command, str(tmp_path / "merged"), "--merge"]) == 0
    assert (tmp_path / "merged" / "config.json").is_file()
    assert (tmp_path / "merged" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("family", "targets"),
    [
        pytest.param(
            "qwen3_moe",
            ("experts.down_proj", "q_proj", "gate_up_proj"),
            marks=pytest.mark.wide,
        ),
        pytest.param("untied", ("embed_tokens", "v_proj"), marks=pytest.mark.wide),
        # its names in the folder are others, and some lie together there
        ("gpt_neox", ()),
        pytest.param("deepseek_v3", ("o_proj",), marks=pytest.mark.slow),
    ],
)
def test_layers_of_other_families_have_adapters(
    tmp_path: Path, untied: Path, family: str, targets: tuple[str, ...]
) -> None:
    path = untied
    if family != "untied":
        path = write_family(tmp_path / "model", family, vocab_size=VOCAB)
    if family == "qwen3_moe":
        with pytest.raises(
            ConfigError, match=r"got 'experts'; they are .*, gate_up_proj, down_pr"
        ):
            lora_actor(path, LoraSpec(rank=2, targets=["experts"]))
    spec = LoraSpec(rank=2, targets=targets)
    found: dict[str, list[Any]] = {}
    for backend in ("plain", "fsdp2"):
        actor = lora_actor(path, spec, backend=backend)
        before = weights(actor)
        found[backend] = [
            dict(update(actor, BATCH).means())["policy/loss"] for _ in range(3)
        ]
        after = weights(actor)
        changed = [
            name for name, one in after.items() if not torch.equal(one, before[name])
        ]
        assert changed
        served = {"gate_up_proj": "gate_proj", "experts.down_proj": "down_proj"}
        assert all(any(served.get(one, one) in name for name in changed) for one in targets)
    assert found["plain"] == pytest.approx(found["fsdp2"], rel=1e-5)
    assert found["plain"][2] < found["plain"][0]
    actor.save(tmp_path / "checkpoint")
    # what is served is what the trainer computes
    actor.export(tmp_path / "export")
    export_checkpoint(
        tmp_path / "checkpoint", tmp_path / "merged", merges=True, dtype="float32"
    )
    shard = update_shards(actor, BATCH, 64, 1)[0]
    expected = actor.trained_logprobs(shard)
    for name in ("export", "merged"):
        merged = make_actor(str(tmp_path / name), "sft", backend="plain")
        np.testing.assert_allclose(merged.trained_logprobs(shard), expected, atol=2e-5)
    export_checkpoint(tmp_path / "checkpoint", tmp_path / "adapter")
    again = lora_actor(path, LoraSpec(path=str(tmp_path / "adapter")))
    for name, one in weights(again).items():
        assert torch.equal(one, after[name]), name


def test_a_critic_trains_its_head_whole_beside_an_adapter_of_its_own(
    model_path: str, tmp_path: Path
) -> None:
    join(DistSpec())
    algorithm = make_algorithm("ppo")
    own: dict[str, Any] = {"backend": "plain", "lora": LoraSpec(rank=2), "head_seed": 3}
    critic = Critic(CriticSpec(model_path, algorithm, MOVING, **own), DistSpec())
    rng = np.random.default_rng(2)
    batch = prepared(make_actor(model_path, "grpo"), make_batch())
    noise = {
        name: (rng.normal(size=batch.num_tokens) * batch.loss_mask).astype(np.float32)
        for name in ("values", "returns")
    }
    shard = update_shards(make_actor(model_path, "sft"), batch.join(noise), 64, 1)[0]
    before = dict(critic.backend.weights(torch.float32))["score.weight"].clone()
    losses = [dict(critic.update(shard).means())["loss"] for _ in range(3)]
    assert losses[2] < losses[0]
    assert not torch.equal(
        dict(critic.backend.weights(torch.float32))["score.weight"], before
    )
    critic.save(tmp_path / "checkpoint")
    again = Critic(
        CriticSpec(model_path, algorithm, MOVING, **own | {"head_seed": 4}), DistSpec()
    )
    again.load(tmp_path / "checkpoint")
    assert again.checksum() == critic.checksum()
    # peft's folder has the head too
    export_checkpoint(tmp_path / "checkpoint", tmp_path / "adapter")
    assert json.loads((tmp_path / "adapter" / CONFIG).read_text())["modules_to_save"] == [
        "score"
    ]
    start = {**own, "lora": LoraSpec(path=str(tmp_path / "adapter")), "head_seed": 5}
    started = Critic(CriticSpec(model_path, algorithm, MOVING, **start), DistSpec())
    assert started.checksum() == critic.checksum()


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lora", "told"),
    [
        (
            {"rank": 2, "targets": ["q_proj", "c_attn"]},
            r"LoraSpec\.targets must name layers that can have an adapter, got 'c_attn'; they are "
            r"q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj \(not the output layer",
        ),
        (
            {"rank": 17},
            r"LoraSpec\.rank must be at most 16, the width of model\.layers\.0\.self_attn\.k_proj",
        ),
        (
            {"rank": 2, "targets": ["embed_tokens"]},
            r"got 'embed_tokens'; they are .* or an embedding that shares its weight\)",
        ),
        (
            {"rank": 2, "targets": ["lm_head"]},
            r"got 'lm_head'; they are .*the output layer, or",
        ),
    ],
)
def test_an_adapter_that_a_model_cannot_have_is_refused(
    model_path: str, lora: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        lora_actor(model_path, LoraSpec(**lora))


def test_a_family_without_linear_layers_has_no_adapter(tmp_path: Path) -> None:
    sizes = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4}
    GPT2LMHeadModel(GPT2Config(**sizes)).save_pretrained(tmp_path)
    told = (
        r"LoraSpec\.targets are by default the linear layers of the blocks, and GPT2LMHeadModel "
        "has none; leave LoraSpec out"
    )
    with pytest.raises(ConfigError, match=told):
        lora_actor(tmp_path, LoraSpec(rank=2))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"rank": 0}, r"LoraSpec\.rank must be at least 1, got 0"),
        (
            {"targets": ["q_proj"]},
            r"LoraSpec\.rank is needed beside alpha and targets, got none",
        ),
        (
            {"path": "a", "rank": 4},
            r"LoraSpec\.path='a' has rank, alpha and targets of its own, got others beside it",
        ),
        (
            {"path": "a", "targets": ["q_proj"]},
            r"LoraSpec\.path='a' has rank, alpha and targets",
        ),
        ({"rank": 2, "alpha": 0.0}, r"LoraSpec\.alpha must be more than 0"),
    ],
)
def test_a_specification_without_sense_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        LoraSpec(**given)


def test_a_base_that_changed_is_not_merged_into_and_a_quantised_one_never(
    model_path: str, tmp_path: Path
) -> None:
    base, checkpoint, out = tmp_path / "base", tmp_path / "checkpoint", tmp_path / "out"
    shutil.copytree(model_path, base)
    lora_actor(base).save(checkpoint)
    write_model(base, seed=8)
    with pytest.raises(
        DataError, match=r"/base, the base .* holds other weights by now \(digest"
    ):
        export_checkpoint(checkpoint, out, merges=True)
    config = json.loads((base / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (base / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ConfigError, match=r"is quantised \(gptq\), and an adapter is merged into"
    ):
        export_checkpoint(checkpoint, out, merges=True)
    with pytest.raises(
        ConfigError, match=r"ActorSpec\.model_path='.*base' is quantised \(gptq\)"
    ):
        lora_actor(base)
    shutil.rmtree(base)
    with pytest.raises(
        DataError, match=r"/base, the base .* is gone; put it back to merge"
    ):
        export_checkpoint(checkpoint, out, merges=True)
    assert not out.exists()


def changed(folder: Path, **values: Any) -> None:
    path = folder / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def rewritten(folder: Path, change: Any, *, digest: bool = True) -> None:
    with safe_open(folder / WEIGHTS, "pt") as file:
        meta = file.metadata()
    tensors = change(load_file(folder / WEIGHTS))
    save_file(tensors, folder / WEIGHTS, metadata=meta if digest else {"format": "pt"})


def without_first(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return dict(list(tensors.items())[1:])


BREAKS: dict[str, tuple[Any, str]] = {
    "no folder of peft": (
        lambda f: (f / CONFIG).unlink(),
        "must be a folder that peft wrote, and its adapter_config.json cannot be read: FileNot",
    ),
    "cut": (lambda f: (f / CONFIG).write_text("{"), "adapter_config.json cannot be read"),
    "no pattern": (
        lambda f: changed(f, target_modules="*_proj"),
        "cannot be read: .*nothing to",
    ),
    "experts in a stack": (
        lambda f: changed(f, target_parameters=["experts.down_proj"]),
        r"the parameter 'experts\.down_proj', which is no stack of experts of",
    ),
    "a newer format": (
        lambda f: changed(f, peft_version="0.30.0", use_better_lora=True),
        r"says use_better_lora=True, which agentrl does not compute \(it reads LoRA as peft 0.21 "
        r"writes it; this is of peft 0.30.0\); merge it by peft's merge_and_unload",
    ),
    "DoRA": (lambda f: changed(f, use_dora=True), "says use_dora=True"),
    "another method": (lambda f: changed(f, peft_type="IA3"), "says peft_type='IA3'"),
    "a base that was changed": (
        lambda f: changed(f, init_lora_weights="pissa"),
        "says init_lora_weights='pissa'",
    ),
    "a tensor is missing": (
        lambda f: rewritten(f, without_first),
        r"lacks 'base_model\.model\.model\.layers\.0\.mlp\.down_proj\.lora_A\.weight'; save",
    ),
    "a tensor is too much": (
        lambda f: changed(f, target_modules=LINEAR[1:]),
        r"holds, for no layer that can have an adapter here, 'base_model\.model\.model\.layers\.0"
        r"\.self_attn\.q_proj",
    ),
    "no weights": (
        lambda f: (f / WEIGHTS).unlink(),
        "adapter_model.safetensors cannot be read",
    ),
    "another base by its shapes": (
        lambda f: rewritten(
            f,
            lambda own: {n: t.repeat(1, 2) if "lora_A" in n else t for n, t in own.items()},
        ),
        r"is of another base: .*q_proj\.lora_A\.weight has shape \[4, 64\], and the layer of "
        r".* takes \[4, 32\]",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_folder_that_is_no_adapter_of_the_model_is_refused(
    model_path: str, moved: Mapping[str, Any], tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "adapter"
    shutil.copytree(moved["folder"] / "adapter", folder)
    breaks, told = BREAKS[name]
    breaks(folder)
    with pytest.raises(DataError, match=rf"LoraSpec\.path='.*adapter'.*{told}"):
        lora_actor(model_path, LoraSpec(path=str(folder)))


def test_an_adapter_of_other_weights_is_refused_by_their_digest(
    moved: Mapping[str, Any], tmp_path: Path
) -> None:
    other = write_model(tmp_path / "other", seed=8)
    adapter = tmp_path / "adapter"
    shutil.copytree(moved["folder"] / "adapter", adapter)
    told = r"was trained on other weights \(digest \w{12}\) than .*other holds"
    with pytest.raises(DataError, match=told):
        lora_actor(other, LoraSpec(path=str(adapter)))
    # peft's own folders have none, and are taken by their shapes
    rewritten(adapter, lambda own: own, digest=False)
    assert lora_actor(other, LoraSpec(path=str(adapter))).steps == 0
    with pytest.raises(
        StoreError, match=r"another adapter: its base_digest is .*on .*other; set"
    ):
        lora_actor(other).load(moved["folder"] / "checkpoint")


def test_full_training_and_an_adapter_do_not_go_on_from_each_other(
    model_path: str, moved: Mapping[str, Any], tmp_path: Path
) -> None:
    whole = make_actor(model_path, "sft", backend="plain")
    whole.save(tmp_path / "whole")
    adapter = moved["folder"] / "checkpoint"
    with pytest.raises(
        StoreError, match=r"holds an adapter of rank 4, and a whole model is"
    ):
        whole.load(adapter)
    with pytest.raises(
        StoreError, match=r"holds a whole model, and an adapter of rank 4 is"
    ):
        lora_actor(model_path).load(tmp_path / "whole")
    with pytest.raises(
        StoreError, match=r"another adapter: its rank is 4, and 8 is trained on"
    ):
        lora_actor(model_path, LoraSpec(rank=8)).load(adapter)
    with pytest.raises(
        StoreError, match=r"another adapter: its layers is \(.* is trained on"
    ):
        lora_actor(model_path, LoraSpec(rank=4, targets=["q_proj"])).load(adapter)
    with pytest.raises(
        StoreError, match="holds a whole model, no adapter; leave --merge out"
    ):
        export_checkpoint(tmp_path / "whole", tmp_path / "out", merges=True)


def test_a_backend_without_adapters_is_refused(model_path: str) -> None:
    with pytest.raises(
        ConfigError, match=r"backend='.*Loop' trains no adapters, and LoraSpec"
    ):
        lora_actor(model_path, backend="tests.training.own_backend:Loop")


# --- layouts --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_ranks_and_layouts_have_one_ranks_numbers(tmp_path: Path, untied: Path) -> None:
    # key heads are fewer than ranks
    write_model(tmp_path / "one_head", tie_word_embeddings=False, num_key_value_heads=1)
    write_family(tmp_path / "mixture", "qwen3_moe", vocab_size=VOCAB, num_experts=4)
    (tmp_path / "untied").symlink_to(untied)
    for size in (1, 2):
        run_ranks("tests.training.lora_rank", size, str(tmp_path))
    expected, found = (torch.load(tmp_path / f"world{size}.pt") for size in (1, 2))
    wanted = {
        f"{one} {layout}" for one in ("untied", "one_head") for layout in ("tp", "sp")
    }
    wanted |= {f"{one} fsdp" for one in ("untied", "one_head", "mixture")}
    assert found.keys() == {*wanted, "mixture ep", "mixture tp"}
    for name, own in found.items():
        one = expected[f"{name.split()[0]} fsdp"]
        assert own["losses"] == pytest.approx(one["losses"], rel=1e-10), name
        for kind in ("gradients", "weights"):
            assert own[kind].keys() == one[kind].keys()
            for key, tensor in one[kind].items():
                error = (own[kind][key] - tensor).abs().max() / tensor.abs().max()
                assert error <= 1e-9, (name, kind, key)
        assert own["sums agree"]
        assert own["goes on"], name
