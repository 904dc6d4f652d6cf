"""MLP row skip: computes a trunk's last MLP for chosen rows alone, on a CPU.

- After the last attention, no row depends on another.
- The hidden states of prompts and tool outputs are unused there, and are often most of a row.
- ``PackedModel`` installs it on a CPU alone (``PackedModel.skips_mlp_rows``), where the saved
  arithmetic outweighs the copies.

Shapes: T packed tokens, R chosen rows, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

MLP_ROWS = "mlp_rows"
"""The argument of a trunk's forward that chooses rows: ``[R]`` int64, different ones."""


def skip_mlp_rows(block: nn.Module) -> None:
    """Makes the dense MLP of a decoder's last layer compute chosen rows alone.

    - The trunk still returns ``[1, T, D]``: the model's own numbers in the chosen rows, zeros
      elsewhere.
    - The rows are an argument of the layer, so that a recomputation in the backward pass chooses
      the same ones.

    Args:
        block: the layer; left unchanged unless it has an ``mlp`` that computes each row
            independently.
    """
    mlp = getattr(block, "mlp", None)
    # a mixture of experts has another class name
    if isinstance(mlp, nn.Module) and type(mlp).__name__.endswith("MLP"):
        hooks = _RowHooks()
        block.register_forward_pre_hook(hooks.take_rows, with_kwargs=True)
        mlp.register_forward_pre_hook(hooks.select)
        mlp.register_forward_hook(hooks.put_back)


class _RowHooks:
    def __init__(self) -> None:
        self._rows: Tensor | None = None
        self._shape = torch.Size()

    def take_rows(
        self, _block: nn.Module, _args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        self._rows = keywords.get(MLP_ROWS)

    def select(self, _mlp: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden: Tensor = args[0]
        self._shape = hidden.shape
        return args if self._rows is None else (hidden.index_select(1, self._rows), *args[1:])

    def put_back(self, _mlp: nn.Module, _args: tuple[Any, ...], output: Tensor) -> Tensor:
        if self._rows is None:
            return output
        return output.new_zeros(self._shape).index_copy_(1, self._rows, output)
