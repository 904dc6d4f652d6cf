"""Mixtures of experts as the trainer routes them, against transformers' own forward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from agentrl.engines import EnginePlace
from agentrl.engines.torch import TorchEngineSpec
from agentrl.errors import ConfigError
from agentrl.metrics.names import describe
from agentrl.training.data.prefix_tree import ROOT, Span
from agentrl.training.models import mixture, policy_model, trunk
from agentrl.training.models.expert_loads import ExpertLoads
from agentrl.training.models.folder_weights import shard_ranges
from agentrl.training.models.lora import Lora, merge
from agentrl.training.models.mixture import (
    Balance,
    Mixture,
    Routed,
    Routing,
    grouped_product,
    use_mixtures,
)
from agentrl.training.models.packed_model import ModelSpec
from agentrl.training.models.peft_folder import AdapterRecord
from agentrl.training.models.policy_model import PolicyModel
from agentrl.types import SegmentKind
from agentrl.weight_sync import publish_in_process
from tests.engines.tiny import all_logprobs, request, sampled
from tests.kit.in_float64 import InFloat64
from tests.tiny_models import write_family
from tests.training.harness import gradients as step_gradients
from tests.training.harness import (
    make_actor,
    make_batch,
    make_siblings,
    own_logprobs,
    update,
)
from tests.whole_models import CPU, load_policy

VOCAB = 61
SIZES = (7, 1, 5)
TRAINED = ("qwen3_moe", "mixtral")


def tokens() -> Tensor:
    return torch.randint(
        0, VOCAB, (sum(SIZES),), generator=torch.Generator().manual_seed(2)
    )


def packed_hidden(model: PolicyModel, experts: Tensor | None = None) -> Tensor:
    """``[T, D]`` of the samples in one row."""
    positions = torch.cat([torch.arange(size) for size in SIZES])
    spans = [Span(ROOT, 0, size) for size in SIZES]
    rows = torch.arange(sum(SIZES))
    return model.hidden(tokens(), positions[None], spans, rows, experts=experts)


def loss_of(logits: Tensor) -> Tensor:
    weights = torch.arange(logits.shape[0], dtype=logits.dtype).cos()[:, None]
    return (logits.log_softmax(-1)[:, 3:5] * weights).sum()


def gradients(model: Any, loss: Tensor) -> dict[str, Tensor]:
    loss.backward()
    return {name: one.grad for name, one in model.named_parameters()}


@pytest.mark.parametrize("family", TRAINED)
def test_every_gradient_is_that_of_transformers_eager_forward(
    family: str, tmp_path: Path
) -> None:
    folder = write_family(tmp_path / "model", family, vocab_size=VOCAB)
    model = load_policy(ModelSpec(str(folder), dtype="float64"))
    found = gradients(model.hf, loss_of(model.head(packed_hidden(model))))
    theirs = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float64,
        attn_implementation="eager",
        experts_implementation="eager",
    )
    with InFloat64():
        logits = [theirs(part[None]).logits[0] for part in tokens().split(SIZES)]
        expected = gradients(theirs, loss_of(torch.cat(logits)))
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-9)


def family_mixture(family: str, **settings: Any) -> Any:
    """The mixture of a family's one layer, and its model."""
    shape: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "intermediate_size": 12,
        "moe_intermediate_size": 12,
        "num_experts": 5,
        "num_local_experts": 5,
        "num_experts_per_tok": 3,
        "rope_parameters": None,
        "pad_token_id": None,
    }
    config = AutoConfig.for_model(family, vocab_size=VOCAB, **shape | settings)
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float64, experts_implementation="eager"
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("qwen3_moe", {"norm_topk_prob": True}),
        ("qwen3_moe", {"norm_topk_prob": False}),
        ("mixtral", {}),
        ("gpt_oss", {}),
    ],
)
def test_a_mixture_is_its_familys(family: str, settings: dict[str, Any]) -> None:
    model = family_mixture(family, **settings)
    rows = torch.randn(
        1, 11, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    with InFloat64():
        expected = model.model.layers[0].mlp(rows)
    routing = use_mixtures(model)
    assert routing is not None
    assert (routing.num_layers, routing.num_experts, routing.top_k) == (1, 5, 3)
    routing.begin()
    found = model.model.layers[0].mlp(rows)
    for one, other in zip(
        *[made if isinstance(made, tuple) else (made,) for made in (found, expected)],
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "gpt_oss"])
def test_adapters_of_experts_add_what_is_merged(family: str) -> None:
    model = family_mixture(family)
    routing = use_mixtures(model)
    assert routing is not None
    own = model.model.layers[0].mlp
    stacks = tuple(
        f"model.layers.0.mlp.experts.{name}" for name in ("gate_up_proj", "down_proj")
    )
    record = AdapterRecord(
        3, 6.0, (), None, (), "base", "digest", stacks, own.experts.is_transposed
    )
    lora = Lora(record, torch.float64)
    lora.attach(model)
    rows = torch.randn(
        1, 11, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )

    def computed() -> Tensor:
        routing.begin()
        found = own(rows)
        return found[0] if isinstance(found, tuple) else found

    with torch.no_grad():
        for pair in record.factors().values():
            for name in pair:
                model.get_parameter(name).normal_()
        with lora.off():
            base = computed()
        found = computed()
        for name, pair in record.factors().items():
            stack = model.get_parameter(name)
            factors = [model.get_parameter(one) for one in pair]
            stack.copy_(merge(record, name, stack, factors, shard_ranges(stack)))
        with lora.off():
            merged = computed()
    torch.testing.assert_close(found, merged, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(found, base)


def test_a_family_that_computes_otherwise_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_family(tmp_path / "model", "mixtral", vocab_size=VOCAB)
    normed = Mixture.__init__

    def unnormed(self: Mixture, *args: Any) -> None:
        normed(self, *args)
        self._norms = False

    monkeypatch.setattr(Mixture, "__init__", unnormed)
    with pytest.raises(ConfigError, match="MixtralForCausalLM"):
        load_policy(ModelSpec(str(folder)))


def test_the_router_is_float32_in_bfloat16(tmp_path: Path) -> None:
    folder = write_family(tmp_path / "model", "qwen3_moe", vocab_size=VOCAB)
    model = load_policy(ModelSpec(str(folder))).to(torch.bfloat16)
    assert model.routing is not None
    block: Any = model.blocks()[0]
    rows = torch.randn(9, 32, generator=torch.Generator().manual_seed(3)).bfloat16()
    model.routing.begin()
    experts, gates = block.mlp.route(rows)
    scores = (rows.float() @ block.mlp.gate.weight.float().T).softmax(-1)
    top = scores.topk(2)
    assert torch.equal(experts, top.indices)
    assert gates.dtype == torch.float32
    torch.testing.assert_close(gates, top.values)


def test_a_token_keeps_its_experts_whatever_is_packed_beside_it(tmp_path: Path) -> None:
    folder = write_family(tmp_path / "model", "qwen3_moe", vocab_size=VOCAB)
    model = load_policy(ModelSpec(str(folder)))
    assert model.routing is not None
    together = packed_hidden(model)
    experts = [model.routing.last[layer].experts for layer in range(2)]
    alone, start = [], 0
    for part in tokens().split(SIZES):
        size = part.numel()
        places = torch.arange(size)
        alone.append(model.hidden(part, places[None], [Span(ROOT, 0, size)], places))
        for layer in range(2):
            own = model.routing.last[layer].experts
            assert torch.equal(own, experts[layer][start : start + size])
        start += size
    torch.testing.assert_close(torch.cat(alone), together)
    # sharp routers choose more than one pair of experts
    assert len(set(map(tuple, experts[0].tolist()))) > 2


def test_given_experts_compute_a_token_with_gates_of_its_own_logits(tmp_path: Path) -> None:
    folder = write_family(tmp_path / "model", "qwen3_moe", vocab_size=VOCAB)
    model = load_policy(ModelSpec(str(folder), dtype="float64"))
    routing = model.routing
    assert routing is not None
    free = packed_hidden(model)
    chosen = torch.stack([routing.last[layer].experts for layer in range(2)], 1)
    assert torch.equal(packed_hidden(model, chosen.to(torch.int16)), free)
    # in another order, and other experts for one token: the tokens before it keep their numbers
    swapped = chosen.flip(-1)
    torch.testing.assert_close(packed_hidden(model, swapped), free)
    other = swapped.clone()
    other[4, 0] = torch.tensor([(one + 1) % 3 for one in chosen[4, 0].tolist()])
    found = packed_hidden(model, other)
    assert routing.last[0].experts[4].tolist() == other[4, 0].tolist()
    assert torch.equal(found[:4], packed_hidden(model, swapped)[:4])
    assert not torch.allclose(found[4:7], free[4:7])
    # the router of a given token still learns
    gradient = gradients(model.hf, found[4].square().sum())[
        "model.layers.0.mlp.gate.weight"
    ]
    assert gradient.abs().max() > 0


def test_a_token_without_given_experts_routes_itself(tmp_path: Path) -> None:
    folder = write_family(tmp_path / "model", "qwen3_moe", vocab_size=VOCAB)
    model = load_policy(ModelSpec(str(folder)))
    assert model.routing is not None
    free = packed_hidden(model)
    own = model.routing.last[0].experts.clone()
    other = torch.full((sum(SIZES), 2, 2), -1)
    other[0, 0] = own[0].flip(0)
    packed_hidden(model, other)
    assert model.routing.last[0].experts[0].tolist() == own[0].flip(0).tolist()
    assert torch.equal(model.routing.last[0].experts[1:], own[1:])
    torch.testing.assert_close(packed_hidden(model, torch.full_like(other, -1)), free)


def test_given_experts_of_another_model_are_refused(tmp_path: Path) -> None:
    folder = write_family(tmp_path / "model", "qwen3_moe", vocab_size=VOCAB)
    model = load_policy(ModelSpec(str(folder)))
    with pytest.raises(
        ValueError, match=r"\[tokens, 2 mixtures, 2 experts a token\], got \[13, 3"
    ):
        packed_hidden(model, torch.zeros(13, 3, 2))


def test_a_grouped_product_is_that_of_each_experts_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(0)
    ends = torch.tensor([4, 4, 10], dtype=torch.int32)
    answers = []
    for has_grouped in (False, True):
        generator.manual_seed(0)
        monkeypatch.setattr(mixture, "_has_grouped", lambda *_, has=has_grouped: has)
        rows = torch.randn(10, 16, generator=generator).requires_grad_()
        stack = torch.randn(3, 8, 16, generator=generator).requires_grad_()
        found = grouped_product(rows, stack.transpose(-2, -1), ends)
        found.backward(torch.randn(10, 8, generator=generator))
        assert stack.grad is not None
        assert not stack.grad[1].any()
        answers.append((found, rows.grad, stack.grad))
    for one, other in zip(*answers, strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(answers[0][0][:4], rows[:4] @ stack[0].T)


def test_a_dense_model_has_no_routing(tmp_path: Path) -> None:
    folder = write_family(tmp_path / "model", "qwen3", vocab_size=VOCAB)
    assert load_policy(ModelSpec(str(folder))).routing is None


def test_the_balancing_loss_is_transformers(tmp_path: Path) -> None:
    """Two samples of one prompt, which the packed row holds once; and a filler."""
    folder = write_family(tmp_path / "model", "qwen3_moe", vocab_size=VOCAB)
    model = load_policy(ModelSpec(str(folder), dtype="float64"))
    routing = model.routing
    assert routing is not None
    ids = tokens()
    spans = [Span(ROOT, 0, 4), Span(0, 4, 3), Span(0, 4, 2), Span(ROOT, 0, 4)]
    positions = torch.tensor([0, 1, 2, 3, 4, 5, 6, 4, 5, 0, 1, 2, 3])
    copies = torch.tensor([2] * 4 + [1] * 5 + [0] * 4)
    loads = ExpertLoads(routing, CPU)

    def forward() -> Tensor:
        return model.hidden(ids, positions[None], spans, torch.arange(13))

    with torch.no_grad():
        forward()
        loads.add(copies)
    routing.balance = Balance(loads.balance(0.3), copies)
    found = gradients(model.hf, (forward() * 0.0).sum())

    theirs = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float64,
        attn_implementation="eager",
        experts_implementation="eager",
    )
    padded = torch.stack([ids[:7], torch.cat([ids[:4], ids[7:9], ids[:1]])])
    mask = torch.tensor([[1] * 7, [1] * 6 + [0]])
    with InFloat64():
        answer = theirs(padded, attention_mask=mask, output_router_logits=True)
        loss = load_balancing_loss_func(answer.router_logits, 3, 2, mask)
        expected = gradients(theirs, 0.3 * loss)
    for name, gradient in expected.items():
        if gradient is not None:
            # transformers has the shares of tokens in float32
            torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-7)
    assert found["model.layers.0.mlp.gate.weight"].abs().max() > 1e-4


def test_loads_are_counted_by_samples_and_told_by_groups_of_layers() -> None:
    routing = Routing(num_experts=3, top_k=2, num_layers=2)
    loads = ExpertLoads(routing, CPU)
    # four tokens, of which two samples hold the first and none the last
    copies = torch.tensor([2, 1, 1, 0])
    experts = torch.tensor([[0, 1], [1, 0], [0, 1], [2, 1]])
    routing.last = {
        0: Routed(experts, torch.tensor([0.5, 1.0, 0.0, 9.0])),
        1: Routed(torch.tensor([[0, 1], [2, 1]]), torch.tensor([1.0, 1.0]), first=1),
    }
    loads.add(copies)
    assert loads.metrics() == pytest.approx(
        {
            # 4 tokens of 2 experts each over 3 experts: 8/3 each where loads are even
            "moe/load_max/0": 4 / (8 / 3),
            "moe/dead_experts/0": 1.0,
            "moe/router_entropy/0": 0.5,
            # a slice of the row: the tokens in its middle
            "moe/load_max/1": 2 / (4 / 3),
            "moe/dead_experts/1": 0.0,
            "moe/router_entropy/1": 1.0,
        }
    )
    assert all(describe(name) for name in loads.metrics())
    # of all 6 tokens in both: expert 0 has 5 of them, 1 has 6, 2 has 1
    assert loads.balance(2.0).tolist() == pytest.approx([5 / 6, 1.0, 1 / 6])


def test_an_update_counts_loads_and_its_balancing_loss_has_no_micro_batches(
    tmp_path: Path,
) -> None:
    folder = write_family(tmp_path / "model", "qwen3_moe", vocab_size=96)
    batch = make_siblings()
    made = {}
    for coefficient, tokens_a_row in ((0.5, 30), (0.5, 1000), (0.0, 1000)):
        actor = make_actor(str(folder), "sft", dtype="float64", router_aux_loss=coefficient)
        stats = update(actor, batch, tokens_a_row)
        found = {name: stat.mean for name, stat in stats.items() if name.startswith("moe/")}
        made[coefficient, tokens_a_row] = step_gradients(actor), found
    one, other, without = made.values()
    assert one[1] == pytest.approx(other[1])
    assert set(one[1]) == {
        f"moe/{name}/{layer}"
        for name in ("load_max", "dead_experts", "router_entropy")
        for layer in (0, 1)
    }
    for name, gradient in one[0].items():
        torch.testing.assert_close(gradient, other[0][name], rtol=1e-9, atol=1e-10)
    name = "hf.model.layers.0.mlp.gate.weight"
    assert (one[0][name] - without[0][name]).abs().max() > 1e-3


def test_a_balancing_loss_of_a_dense_model_is_refused(model_path: str) -> None:
    with pytest.raises(
        ConfigError, match=r"TrainConfig\.router_aux_loss=0\.5 .*got 'qwen3' as"
    ):
        make_actor(model_path, router_aux_loss=0.5)


def test_the_products_of_a_token_are_counted_with_its_own_experts(tmp_path: Path) -> None:
    folder = write_family(tmp_path / "model", "qwen3_moe", vocab_size=96)
    info = make_actor(str(folder), "sft").backend.info
    # in each of two layers one of three experts of 3 · 24 · 32 numbers is idle
    assert info.num_active == info.num_parameters - 2 * 3 * 24 * 32


async def test_what_is_published_gives_torchs_engine_the_logprobs_of_trainer_and_transformers(
    tmp_path: Path,
) -> None:
    folder = write_family(tmp_path / "model", "qwen3_moe", vocab_size=96)
    actor = make_actor(str(folder), "sft")
    update(actor, make_batch(kind=SegmentKind.TARGET))
    engine = TorchEngineSpec().build(EnginePlace(str(folder), context_tokens=64))
    try:
        publish_in_process(actor, engine, 1)
        prompt = np.arange(5, 17, dtype=np.int32)
        ids, logprobs = sampled(await engine.generate(request(prompt, max_new_tokens=20)))
    finally:
        engine.close()
    row = np.concatenate([prompt, ids])
    own = own_logprobs(actor, row)[prompt.size - 1 :]
    np.testing.assert_allclose(logprobs, own, atol=1e-4, rtol=0)
    actor.export(tmp_path / "exported")
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path / "exported", dtype=torch.float32
    )
    expected = all_logprobs(theirs, row)[prompt.size - 1 : -1].numpy()
    np.testing.assert_allclose(
        logprobs, expected[np.arange(ids.size), ids], atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("dense_layers", [[], [1]])
def test_a_mixture_computes_all_rows_and_a_dense_layer_the_chosen_ones(
    dense_layers: list[int], tmp_path: Path
) -> None:
    folder = write_family(
        tmp_path / "model", "qwen3_moe", vocab_size=VOCAB, mlp_only_layers=dense_layers
    )
    model = load_policy(ModelSpec(str(folder), dtype="float64"))
    assert model.routing is not None
    assert model.skips_mlp_rows
    computed: list[int] = []
    last: Any = model.blocks()[-1]
    inner = last.mlp if dense_layers else last.mlp.experts
    inner.register_forward_hook(lambda _, args, __: computed.append(args[0].shape[-2]))
    whole = packed_hidden(model)
    positions = torch.cat([torch.arange(size) for size in SIZES])
    spans = [Span(ROOT, 0, size) for size in SIZES]
    found = model.hidden(tokens(), positions[None], spans, torch.tensor([9, 3]))
    torch.testing.assert_close(found, whole[[9, 3]], rtol=1e-12, atol=1e-12)
    # 13 tokens of two experts each, so that loads are those of all tokens
    assert computed == ([13, 2] if dense_layers else [26, 26])
    assert [one.experts.shape[0] for one in model.routing.last.values()] == [13] * (
        2 - len(dense_layers)
    )


@pytest.mark.slow
def test_compiled_layers_leave_experts_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    operations: list[str] = []

    def recorded(module: GraphModule, _inputs: Any) -> Any:
        operations.extend(str(node.target) for node in module.graph.nodes)
        return module.forward

    for own in (trunk, policy_model):
        monkeypatch.setattr(own, "COMPILER", recorded)
    folder = write_family(tmp_path / "model", "qwen3_moe", vocab_size=96)
    batch = make_batch(kind=SegmentKind.TARGET)
    found = []
    for compiles in (False, True):
        actor = make_actor(str(folder), "sft", dtype="float64", compile=compiles)
        update(actor, batch, 40)
        found.append(step_gradients(actor))
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-9, atol=1e-10)
    assert any("linear" in one for one in operations)
    assert not [one for one in operations if "topk" in one or "sort" in one]
