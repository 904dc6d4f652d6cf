"""Sequence parallelism (Ulysses, arXiv:2309.14509): cuts a packed row over ranks.

- Each rank computes a slice of the row. Around attention, an all-to-all gives it all tokens of some
  heads, so that any attention function serves, and any spans.
- Key heads are repeated where they are fewer than ranks.

Shapes: H query heads, K key heads, T tokens of the row, S of a rank's slice, D head width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from agentrl.errors import ConfigError
from agentrl.training.parallel.collectives import exchange

ULYSSES = "ulysses"


@dataclass(frozen=True, slots=True)
class Ulysses:
    """What the attention of a cut row needs beside that of a whole one.

    Args:
        ranks: that hold the row.
        attention: the name of the function that attends.
    """

    ranks: dist.ProcessGroup
    attention: str


def ulysses_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    ulysses: Ulysses,
    **arguments: Any,
) -> tuple[Tensor, None]:
    """Attention over a row that is cut over ranks.

    Args:
        module: the attention layer.
        query: ``[1, H, S, D]``.
        key, value: ``[1, K, S, D]``.
        attention_mask: always None: transformers makes no mask for an unknown implementation.
        ulysses: the ranks, and what attends.
        arguments: of that function, for the whole row.

    Returns:
        ``[1, S, H, D]`` and None, as in transformers' interface.
    """
    ranks = ulysses.ranks
    attend: Callable[..., tuple[Tensor, Any]] = ALL_ATTENTION_FUNCTIONS[ulysses.attention]
    repeats = math.lcm(key.shape[1], ranks.size()) // key.shape[1]
    if repeats > 1:
        # Copies of a head stay neighbours, as the query heads that read it are.
        key, value = (one.repeat_interleave(repeats, dim=1) for one in (key, value))
    whole = [exchange(one, 1, 2, ranks) for one in (query, key, value)]
    found, _ = attend(module, *whole, attention_mask, **arguments)
    return exchange(found, 1, 2, ranks), None


def use_ulysses(hf: nn.Module) -> None:
    """Makes a model attend by ``ulysses_attention``."""
    config: Any = hf.config
    config.get_text_config()._attn_implementation = ULYSSES


def check_sequence_parallel(config: Any, tp: int, sp: int, named: str) -> None:
    """Refuses a model whose rows cannot be cut. One whose layers mix tokens in other ways than by
    attention is refused by its small twin.

    Args:
        config: of its text model.
        tp: ranks that divide its heads already.
        sp: ranks that shall hold a row.
        named: the model's setting and value, for errors.

    Raises:
        ConfigError: the heads of a rank cannot be divided.
    """
    if sp == 1:
        return
    heads = int(config.num_attention_heads)
    if heads // tp % sp:
        possible = [str(n) for n in range(1, heads // tp + 1) if heads // tp % n == 0]
        beside = f" / PlacementConfig.tp_size={tp}" if tp > 1 else ""
        raise ConfigError(
            f"PlacementConfig.sp_size must divide the {heads} attention heads{beside} of {named}, "
            "got "
            f"{sp}; set one of {', '.join(possible)}"
        )


AttentionInterface.register(ULYSSES, ulysses_attention)
