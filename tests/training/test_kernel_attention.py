"""Kernel attentions: their masks and arguments against segments and definitions on a CPU, their
kernels on a GPU, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    Gemma2Config,
    Gemma2ForCausalLM,
    Qwen3VLTextConfig,
    Qwen3VLTextModel,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from agentrl.errors import ConfigError
from agentrl.training import DistSpec, join
from agentrl.training.data import kernel_attention
from agentrl.training.data.attention import SEGMENTS, Masks, segment_attention
from agentrl.training.data.block_mask import BLOCK, block_kinds, block_mask
from agentrl.training.data.kernel_attention import (
    BY_ROW,
    attention_arguments,
    choose_attention,
    flex,
    varlen_attention,
)
from agentrl.training.data.prefix_tree import ROOT, Span
from agentrl.training.models.packed_model import ModelSpec
from tests.training.harness import write_model
from tests.whole_models import load_policy

CPU = torch.device("cpu")
CUDA = torch.device("cuda")
TREE = (
    Span(ROOT, 0, 300),
    Span(0, 300, 200),
    Span(0, 300, 45),
    Span(1, 500, 150),
    Span(ROOT, 0, 90),
    Span(1, 500, 77),
)
APART = tuple(Span(ROOT, 0, size) for size in (300, 45, 1, 150, 90))
HEADS, KEY_HEADS, WIDTH = 4, 2, 64


def packed(
    spans: tuple[Span, ...], device: torch.device, dtype: torch.dtype
) -> list[Tensor]:
    torch.manual_seed(0)
    total = sum(span.size for span in spans)
    return [
        torch.randn(1, heads, total, WIDTH).to(device, dtype)
        for heads in (HEADS, KEY_HEADS, 2)
    ]


def by_segments(tensors: list[Tensor], spans: tuple[Span, ...], **options: Any) -> Tensor:
    found, _ = segment_attention(
        nn.Identity(), *tensors, None, masks=Masks(spans), **options
    )
    return found


def visible(spans: tuple[Span, ...], window: int | None) -> Tensor:
    """``[T, T]`` by the definition: the path of each token's span, and the distance on it."""
    owner = [index for index, span in enumerate(spans) for _ in range(span.size)]
    place = [span.first + step for span in spans for step in range(span.size)]
    paths = []
    for index in range(len(spans)):
        path, at = set(), index
        while at != ROOT:
            path.add(at)
            at = spans[at].parent
        paths.append(path)
    rows = []
    for query, above in zip(place, (paths[index] for index in owner), strict=True):
        rows.append(
            [
                of in above and 0 <= query - key < (window or 10**9)
                for key, of in zip(place, owner, strict=True)
            ]
        )
    return torch.tensor(rows)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 256, 7])
@pytest.mark.parametrize("spans", [TREE, APART, (Span(ROOT, 0, 2 * BLOCK),)])
def test_the_block_mask_is_the_prefix_tree(
    spans: tuple[Span, ...], window: int | None
) -> None:
    expected = visible(spans, window)
    total = expected.shape[0]
    mask = block_mask(spans, window, CPU)
    places = torch.arange(total)
    none = torch.zeros((), dtype=torch.int64)
    assert torch.equal(mask.mask_mod(none, none, places[:, None], places[None]), expected)
    # no visible key lies in a block that is left out, no hidden one in a block called full
    some, full = (torch.from_numpy(kind) for kind in block_kinds(spans, window))
    assert torch.equal(mask.to_dense()[0, 0].bool(), some)
    assert not (full & ~some).any()
    for row, column in (
        (row, column) for row in range(len(some)) for column in range(len(some))
    ):
        part = expected[
            row * BLOCK : (row + 1) * BLOCK, column * BLOCK : (column + 1) * BLOCK
        ]
        assert bool(some[row, column]) or not bool(part.any())
        assert bool(part.all()) or not bool(full[row, column])


def test_of_one_long_sample_half_the_blocks_are_computed_and_those_off_the_diagonal_whole() -> (
    None
):
    some, full = block_kinds((Span(ROOT, 0, 8 * BLOCK),), None)
    assert (some.sum(), full.sum()) == (36, 28)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 256, 7])
def test_flex_attends_as_segments_do(window: int | None) -> None:
    tensors = packed(TREE, CPU, torch.float32)
    arguments = attention_arguments("flex", TREE, CPU)
    with torch.no_grad():
        found, _ = flex(nn.Identity(), *tensors, None, sliding_window=window, **arguments)
    expected = by_segments(tensors, TREE, sliding_window=window)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_flex_caps_scores() -> None:
    # one query of ones at keys 0 and 8: scores 0 and 8, capped at 2 to 0 and 2 tanh 4
    keys = torch.tensor([0.0, 8.0]).view(1, 1, 2, 1).expand(1, 1, 2, 16).clone()
    keys[..., 1:] = 0
    query = torch.ones(1, 1, 2, 16)
    value = torch.tensor([0.0, 1.0]).view(1, 1, 2, 1).expand(1, 1, 2, 16).clone()
    arguments = attention_arguments("flex", (Span(ROOT, 0, 2),), CPU)
    with torch.no_grad():
        found, _ = flex(
            nn.Identity(), query, keys, value, None, scaling=1.0, softcap=2.0, **arguments
        )
    capped = 2 * torch.tanh(torch.tensor(4.0))
    assert found[0, 1, 0, 0].item() == pytest.approx(torch.sigmoid(capped).item(), abs=1e-5)


def test_a_row_is_given_to_varlen_by_its_boundaries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel needs a GPU; here a definition with its signature stands in its place."""
    calls: list[dict[str, Any]] = []

    def definition(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor,
        max_q: int,
        max_k: int,
        *,
        scale: float | None,
        window_size: tuple[int, int],
        enable_gqa: bool = False,
    ) -> Tensor:
        calls.append(
            {"max": (max_q, max_k), "ends": cu_seq_q.tolist(), "window": window_size}
        )
        assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
        rows = []
        for low, high in zip(cu_seq_q[:-1].tolist(), cu_seq_k[1:].tolist(), strict=True):
            q, k, v = (one[low:high].transpose(0, 1) for one in (query, key, value))
            distance = torch.arange(high - low)[:, None] - torch.arange(high - low)
            seen = (distance >= -window_size[1]) & (
                (distance <= window_size[0]) | (window_size[0] < 0)
            )
            one = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=seen, scale=scale, enable_gqa=enable_gqa
            )
            rows.append(one.transpose(0, 1))
        return torch.cat(rows)

    monkeypatch.setattr(kernel_attention, "varlen_attn", definition)
    tensors = packed(APART, CPU, torch.float32)
    for window in (None, 7):
        arguments = attention_arguments(BY_ROW, APART, CPU)
        found, _ = varlen_attention(
            nn.Identity(), *tensors, None, sliding_window=window, **arguments
        )
        expected = by_segments(tensors, APART, sliding_window=window)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    ends = [0, 300, 345, 346, 496, 586]
    assert calls[0] == {"max": (300, 300), "ends": ends, "window": (-1, 0)}
    assert calls[1]["window"] == (6, 0)


def test_auto_takes_flex_for_rows_with_shared_beginnings_alone() -> None:
    assert attention_arguments(BY_ROW, TREE, CPU).keys() == {"block_masks"}
    assert attention_arguments(BY_ROW, APART, CPU).keys() == {"boundaries"}


@pytest.mark.parametrize(
    ("name", "device", "dtype", "found"),
    [
        ("auto", CPU, torch.float32, SEGMENTS),
        ("auto", CPU, torch.bfloat16, SEGMENTS),
        ("auto", CUDA, torch.bfloat16, BY_ROW),
        ("auto", CUDA, torch.float32, SEGMENTS),
        ("segments", CUDA, torch.bfloat16, SEGMENTS),
        ("varlen", CUDA, torch.bfloat16, "varlen"),
        ("flex", CUDA, torch.float32, "flex"),
    ],
)
def test_what_a_setting_stands_for(
    name: Any, device: torch.device, dtype: torch.dtype, found: str
) -> None:
    assert choose_attention(name, device, dtype) == found


@pytest.mark.parametrize(
    ("name", "device", "dtype", "message"),
    [
        (
            "varlen",
            CPU,
            torch.bfloat16,
            r"'varlen' needs a CUDA device, got 'cpu'; set it to auto",
        ),
        ("flex", CPU, torch.float32, r"'flex' needs a CUDA device"),
        (
            "varlen",
            CUDA,
            torch.float32,
            r"computes in bfloat16, got ModelConfig\.dtype='float32'",
        ),
    ],
)
def test_what_a_machine_lacks_is_refused(
    name: Any, device: torch.device, dtype: torch.dtype, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_attention(name, device, dtype)


@pytest.mark.parametrize("name", ["flash_attention_2", "flash_attention_3"])
def test_a_kernel_that_is_not_installed_is_refused(
    name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = kernel_attention._FLASH[name][1]
    monkeypatch.setitem(kernel_attention._FLASH, name, (lambda: False, package))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"needs the package .* install it, or set auto"):
        choose_attention(name, CUDA, torch.bfloat16)


@pytest.mark.parametrize("name", ["segments", "varlen"])
def test_a_family_that_caps_its_scores_is_refused(name: str) -> None:
    attend = ALL_ATTENTION_FUNCTIONS[name]
    tensors = packed(APART, CPU, torch.float32)
    arguments = attention_arguments(name, APART, CPU)
    with pytest.raises(
        ConfigError, match=f"attention='{name}' lacks 'softcap'.* set flash"
    ):
        attend(nn.Identity(), *tensors, None, softcap=30.0, **arguments)


def test_flex_refuses_attention_sinks() -> None:
    tensors = packed(TREE, CPU, torch.float32)
    arguments = attention_arguments("flex", TREE, CPU)
    with pytest.raises(ConfigError, match="attention='flex' lacks 's_aux'"):
        flex(nn.Identity(), *tensors, None, s_aux=torch.zeros(4), **arguments)


@pytest.mark.parametrize("attention", ["varlen", "flex"])
def test_trunk_and_head_are_compared_whatever_the_attention(
    tmp_path: Any, attention: Any
) -> None:
    """A family that caps its logits is refused, though its attention's kernel needs a GPU."""
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.5,
        final_logit_softcapping=1.0,
    )
    capping = tmp_path / "capping"
    Gemma2ForCausalLM(config).save_pretrained(capping)
    (capping / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="changes logits after its output layer"):
        load_policy(ModelSpec(str(capping), dtype="bfloat16", attention=attention), CUDA)
    sound = write_model(tmp_path / "sound")
    model = load_policy(ModelSpec(str(sound), dtype="bfloat16", attention=attention), CUDA)
    assert (model.attention, model.config._attn_implementation) == (attention, attention)


def test_positions_may_have_three_axes(model_path: str) -> None:
    """Text has the same place on each axis."""
    config = Qwen3VLTextConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        rope_scaling={
            "rope_type": "default",
            "mrope_section": [2, 1, 1],
            "rope_theta": 1e4,
        },
    )
    model = load_policy(ModelSpec(model_path))
    torch.manual_seed(0)
    trunk = Qwen3VLTextModel._from_config(config, attn_implementation=SEGMENTS)
    model.hf = trunk  # its own base model
    model.skips_mlp_rows = False
    spans = (Span(ROOT, 0, 5), Span(ROOT, 0, 4))
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3]])
    ids, rows = torch.arange(9), torch.arange(9)
    with torch.no_grad():
        one = model.hidden(ids, positions, spans, rows)
        same = model.hidden(ids, positions.expand(3, 9), spans, rows)
        moved = torch.cat([positions, positions * 2, positions])
        other = model.hidden(ids, moved, spans, rows)
    torch.testing.assert_close(one, same)
    assert not torch.allclose(one, other, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 128])
@pytest.mark.parametrize(
    ("name", "spans"), [("varlen", APART), ("flex", APART), ("flex", TREE)]
)
def test_a_kernel_gives_the_numbers_and_gradients_of_segments(
    name: str, spans: tuple[Span, ...], window: int | None
) -> None:
    join(DistSpec(device="cuda:0"))
    attend = AttentionInterface()[name]
    sides = []
    for dtype in (torch.float32, torch.bfloat16):
        tensors = [
            one.requires_grad_()
            for one in packed(spans, torch.device("cuda:0"), torch.bfloat16)
        ]
        if dtype is torch.float32:
            wide = [one.detach().float().requires_grad_() for one in tensors]
            found = by_segments(wide, spans, sliding_window=window)
            sides.append((found, torch.autograd.grad(found.square().sum(), wide)))
        else:
            arguments = attention_arguments(name, spans, torch.device("cuda:0"))
            found, _ = attend(
                nn.Identity(), *tensors, None, sliding_window=window, **arguments
            )
            sides.append(
                (found, torch.autograd.grad(found.float().square().sum(), tensors))
            )
    (expected, gradients), (found, own) = sides
    assert (found - expected).abs().max() <= 2e-2 * expected.abs().max()
    for one, other in zip(own, gradients, strict=True):
        assert (one - other).abs().max() <= 2e-2 * other.abs().max()
