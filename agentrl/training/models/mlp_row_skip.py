"""Spares a trunk the rows that nobody asks for: behind its last attention, no row depends on another.

Prompts and tool outputs are often most of a row, and their last hidden states are used by nothing.

Shapes: T packed tokens, R chosen rows, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["LAST_ROWS", "spare_last_rows"]

LAST_ROWS = "last_rows"
"""The argument of a trunk's forward that chooses rows: ``[R]`` int64, different ones."""


def spare_last_rows(block: nn.Module) -> None:
    """Make the dense MLP of a decoder's last layer work on chosen rows alone.

    The trunk still answers ``[1, T, D]``: the model's own numbers in the chosen rows, others elsewhere. Rows come with
    the layer's arguments, so that a layer which is recomputed in the backward chooses the same.

    Args:
        block: the layer; one without an ``mlp`` that takes each row by itself is left as it is.
    """
    mlp = getattr(block, "mlp", None)
    if isinstance(mlp, nn.Module) and type(mlp).__name__.endswith(
        "MLP"
    ):  # a mixture of experts is named otherwise
        chosen = _Chosen()
        block.register_forward_pre_hook(chosen.note, with_kwargs=True)
        mlp.register_forward_pre_hook(chosen.choose)
        mlp.register_forward_hook(chosen.put_back)


class _Chosen:
    def __init__(self) -> None:
        self._rows: Tensor | None = None
        self._shape = torch.Size()

    def note(self, _block: nn.Module, _args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._rows = keywords.get(LAST_ROWS)

    def choose(self, _mlp: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden: Tensor = args[0]
        self._shape = hidden.shape
        return args if self._rows is None else (hidden.index_select(1, self._rows), *args[1:])

    def put_back(self, _mlp: nn.Module, _args: tuple[Any, ...], output: Tensor) -> Tensor:
        if self._rows is None:
            return output
        return output.new_zeros(self._shape).index_copy_(1, self._rows, output)
