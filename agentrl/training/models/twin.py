"""Twin: a small random model of a family, which tells whether its samples can be packed.

It has the family's class and widths with a layer of each kind, few tokens and a narrow MLP, and
runs on the CPU in float32, so that no weights are needed. Windows are shorter than its samples.

Shapes: T tokens of a row, D width.
"""

from __future__ import annotations

import math
import re
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.engines.torch.model.families import max_positions
from agentrl.errors import AgentRLError, ConfigError
from agentrl.training.data.attention import BY_SPAN, REFERENCE
from agentrl.training.data.prefix_tree import ROOT, Span
from agentrl.training.models.packed_model import CPU, PackedModel, trunk_of

_SIZE = 64
"""Tokens and MLP width."""

_SAMPLES = (13, 17)
"""Tokens of the samples that are packed."""

_WINDOW = 3
"""What windows, chunks and choices of tokens are shortened to, so that each sample has several."""

_WINDOWS = re.compile(r"window|attention_chunk|block_size|local_attention|^index_topk")
"""Their names in configurations."""

_TOLERANCE = 1e-3
"""Of the size of hidden states; a token that is seen or missed wrongly changes some by a tenth."""


def check_twin(model: PackedModel, auto: Any, named: str, head_fault: str) -> None:
    """Refuses a family that computes the samples of a packed row otherwise than its own forward
    computes each alone, or whose answers are not those of its output layer.

    Args:
        model: of the family, maybe without its weights.
        auto: the transformers class.
        named: the setting that names the folder, and its value.
        head_fault: what a family does that answers otherwise.

    Raises:
        ConfigError: as said, or the attention lacks what the family's needs.
    """
    try:
        fault = _fault(model, auto, head_fault)
    except AgentRLError as error:
        raise ConfigError(f"{named}: {type(model.hf).__name__}: {error}") from error
    except Exception as error:
        # of a family's own code, called as none of its own callers does
        fault = f"raises {type(error).__name__} over a packed row ({error})"
        raise _refusal(model, named, fault) from error
    if fault is not None:
        raise _refusal(model, named, fault)


def _refusal(model: PackedModel, named: str, fault: str) -> ConfigError:
    family = type(model.hf).__name__
    return ConfigError(f"{named}: {family} {fault}; choose another family")


@torch.no_grad()
def _fault(model: PackedModel, auto: Any, head_fault: str) -> str | None:
    own: Any = small_twin(auto, model.config)
    _stir(trunk_of(own))
    attention = model.attention if model.attention in BY_SPAN else REFERENCE
    twin = type(model)(deepcopy(own), attention, CPU)
    twin.config.get_text_config()._attn_implementation = attention
    # a token of its own at each place, and none that means anything
    size = int(twin.config.get_text_config().vocab_size) - 1
    samples = torch.split(1 + torch.arange(sum(_SAMPLES)) % size, [*_SAMPLES])
    alone = torch.cat([_own(trunk_of(own), ids).last_hidden_state[0] for ids in samples])
    # some rows, the first of the second sample and the last among them
    rows = torch.arange(1, len(alone), 2)
    if not _agree(_packed(twin, samples, rows), alone[rows]):
        return (
            "computes the samples of a packed row otherwise than each alone (its layers mix tokens "
            "by other means than the attention function, as convolutions and recurrences do, or "
            "attend by a mask of their own), so that neighbours would be trained into each other"
        )
    # large answers, which a family that caps them would change
    weight = twin.head.weight
    assert isinstance(weight, nn.Parameter), "an output layer has one"
    deviation = 30.0 / weight.shape[-1] ** 0.5
    nn.init.normal_(weight, 0.0, deviation, torch.Generator().manual_seed(1))
    # the twin's mixtures are ours, with the names of the family's
    own.load_state_dict(twin.hf.state_dict())
    last = samples[-1]
    answer = _own(own, last).logits.flatten(0, -2)[-1:]
    found = twin.head(_packed(twin, [last], torch.tensor([len(last) - 1])))
    return None if _agree(found, answer) else head_fault


def _own(family: Any, ids: Tensor) -> Any:
    """What a family's forward makes of one sample."""
    positions = torch.arange(len(ids))[None]
    return family(input_ids=ids[None], position_ids=positions, use_cache=False)


def _packed(
    twin: PackedModel, samples: list[Tensor] | tuple[Tensor, ...], rows: Tensor
) -> Tensor:
    positions = torch.cat([torch.arange(len(ids)) for ids in samples])[None]
    spans = [Span(ROOT, 0, len(ids)) for ids in samples]
    return twin.hidden(torch.cat([*samples]), positions, spans, rows)


def _agree(found: Tensor, expected: Tensor) -> bool:
    # by the spread of all numbers: one answer has none
    spread = expected.square().mean().sqrt()
    return bool((found - expected).abs().max() <= _TOLERANCE * spread)


def _stir(trunk: nn.Module) -> None:
    """Adds to each parameter: those that begin at 0 or 1 would hide what they do."""
    generator = torch.Generator().manual_seed(2)
    for parameter in trunk.parameters():
        deviation = 0.3 if parameter.ndim < 2 else parameter.shape[-1] ** -0.5
        parameter.add_(
            torch.empty_like(parameter).normal_(0.0, deviation, generator=generator)
        )


def small_twin(auto: Any, config: Any) -> nn.Module:
    """A random model of the same family and widths, with the family's own attention; it takes no
    random number of the process."""
    small = deepcopy(config)
    text = small.get_text_config()
    _keep_a_layer_of_each_kind(text)
    longest = max_positions(text) or math.inf
    for name, value in list(vars(text).items()):
        if type(value) is not int:
            continue
        if name.endswith("intermediate_size"):
            setattr(text, name, min(value, _SIZE))
        # A padding token beyond the few entries would fail the embedding's own check.
        if name.endswith("_token_id"):
            setattr(text, name, 0)
        # one that no sample outgrows changes nothing
        if _WINDOWS.search(name) and _WINDOW < value < longest:
            setattr(text, name, _WINDOW)
    text.vocab_size = min(int(text.vocab_size), _SIZE)
    if "vision_config" in small.sub_configs:
        tower = small.vision_config
        levels = getattr(tower, "deepstack_visual_indexes", ())
        tower.depth, tower.deepstack_visual_indexes = 1, [0][: len(levels)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        hf: nn.Module = auto.from_config(
            small, dtype=torch.float32, attn_implementation="eager"
        )
    return hf.eval()


def _keep_a_layer_of_each_kind(text: Any) -> None:
    num_layers = int(text.num_hidden_layers)
    # Those from here on read the keys of earlier layers, of which each kind is before them.
    shared = num_layers - (getattr(text, "num_kv_shared_layers", None) or 0)
    of_layers = enumerate(getattr(text, "layer_types", None) or ())
    kinds = [(kind, index >= shared) for index, kind in of_layers]
    chosen = [kinds.index(kind) for kind in dict.fromkeys(kinds)] or [0]
    own: dict[Any, Any] = text.to_dict().get("per_layer_config") or {}
    for name, value in list(vars(text).items()):
        if isinstance(value, list) and len(value) == num_layers:
            setattr(text, name, [value[index] for index in chosen])
    text.num_hidden_layers = len(chosen)
    if text.num_hidden_layers < len(chosen):
        # LongCat counts a layer as two, and has none of an odd number.
        text.num_hidden_layers = 2 * len(chosen)
    if shared < num_layers:
        text.num_kv_shared_layers = sum(index >= shared for index in chosen)
    if own:
        given = {int(index): value for index, value in own.items()}
        text.per_layer_config = {
            place: given[index] for place, index in enumerate(chosen) if index in given
        }
