"""Stage names: where each parameter of a Hugging Face model lies in a stage of Megatron's model.

Names are transformers', for which the experts of a layer are one stack. Megatron keeps queries,
keys and values of a layer as one matrix, a group of heads after the other, and the two projections
into an MLP as one, each rank's gate before its up. All else lies as in transformers. A rank's part
of a tensor is then the rows or columns that tensor parallelism gives it, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from agentrl.errors import ConfigError

EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a parameter of Megatron's: seen as ``[groups, parts, rows, ...]``, its parts
    ``first`` to ``stop``.

    Args:
        parameter: its name in the stage.
        groups: of heads.
        parts: of a group.
        first, stop: the tensor's own.
        is_copy: the stage of the embedding has it too, and writes it.
    """

    parameter: str
    groups: int = 1
    parts: int = 1
    first: int = 0
    stop: int = 1
    is_copy: bool = False

    def of(self, whole: Tensor) -> Tensor:
        """The tensor of a parameter, of its gradient or moments; a view where it lies in one
        piece."""
        return self._grouped(whole).reshape(-1, *whole.shape[1:])

    def put(self, part: Tensor, whole: Tensor) -> None:
        """Writes it into a parameter."""
        own = self._grouped(whole)
        own.copy_(part.reshape(own.shape))

    def _grouped(self, whole: Tensor) -> Tensor:
        parts = whole.view(self.groups, self.parts, -1, *whole.shape[1:])
        return parts[:, self.first : self.stop]


_EMBEDDING = {EMBEDDING: "embedding.word_embeddings.weight"}
_OUTPUT = {
    "model.norm.weight": "decoder.final_layernorm.weight",
    "lm_head.weight": "output_layer.weight",
}
_LAYER = {
    "input_layernorm": "input_layernorm",
    "self_attn.o_proj": "self_attention.linear_proj",
    "self_attn.q_norm": "self_attention.q_layernorm",
    "self_attn.k_norm": "self_attention.k_layernorm",
    "post_attention_layernorm": "pre_mlp_layernorm",
    "mlp.down_proj": "mlp.linear_fc2",
    "mlp.gate": "mlp.mixture.gate",
}
"""Of a layer, what lies as in the folder: the folder's module and Megatron's."""


class StageNames:
    """The tensors of a model and the stage of each.

    Args:
        names: of the model's parameters in transformers, in order, a tied one once.
        config: of transformers.
        tp: ranks that hold a layer together.
        pp: stages.
        stage: this rank's.
        named: the model's setting and value, for errors.

    Attributes:
        pieces: of this stage, by name.
    """

    def __init__(
        self, names: Iterable[str], config: Any, *, tp: int, pp: int, stage: int, named: str
    ) -> None:
        self._layers: int = config.num_hidden_layers // pp
        self._last = pp - 1
        known = list(names)
        places = dict(self._places(config, tp))
        odd = [name for name in known if name not in places]
        if odd:
            raise ConfigError(
                f"TrainConfig.backend='megatron' has no place for {odd[0]!r} and {len(odd) - 1} "
                f"more of the weights of {named}, such as biases of output or MLP projections; "
                "set TrainConfig.backend=fsdp2"
            )
        self.pieces: Mapping[str, Piece] = {
            name: places[name] for name in known if self.stage_of(name) == stage
        }
        if self._last and stage == self._last and "lm_head.weight" not in known:
            tied = Piece(_OUTPUT["lm_head.weight"], is_copy=True)
            # First, as where all ranks have it: they read their parts in one order.
            self.pieces = {EMBEDDING: tied, **self.pieces}

    def stage_of(self, name: str) -> int:
        """The stage that writes and publishes a tensor."""
        if name == EMBEDDING:
            return 0
        if name in _OUTPUT:
            return self._last
        return int(name.split(".")[2]) // self._layers

    def _places(self, config: Any, tp: int) -> Iterator[tuple[str, Piece]]:
        for name, own in (*_EMBEDDING.items(), *_OUTPUT.items()):
            yield name, Piece(own)
        groups = config.num_key_value_heads // tp
        heads = config.num_attention_heads // config.num_key_value_heads
        qkv = {"q": (0, heads), "k": (heads, heads + 1), "v": (heads + 1, heads + 2)}
        for layer in range(config.num_hidden_layers):
            folder = f"model.layers.{layer}"
            stage = f"decoder.layers.{layer % self._layers}"
            for name, own in _LAYER.items():
                yield f"{folder}.{name}.weight", Piece(f"{stage}.{own}.weight")
            for name, (first, stop) in qkv.items():
                for kind in ("weight", "bias"):
                    own = f"{stage}.self_attention.linear_qkv.{kind}"
                    piece = Piece(own, groups, heads + 2, first, stop)
                    yield f"{folder}.self_attn.{name}_proj.{kind}", piece
            for name in ("gate_up_proj", "down_proj"):
                own = f"mlp.mixture.experts.{name}"
                yield f"{folder}.mlp.experts.{name}", Piece(f"{stage}.{own}")
            for number, name in enumerate(("gate", "up")):
                own = f"{stage}.mlp.linear_fc1.weight"
                piece = Piece(own, 1, 2, number, number + 1)
                yield f"{folder}.mlp.{name}_proj.weight", piece
