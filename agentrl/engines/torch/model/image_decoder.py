"""The forward of a model that sees: images' features as embeddings, and positions in planes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from agentrl.engines.torch.kv_cache import KVCache
from agentrl.engines.torch.model.expert_recorder import ExpertRecorder
from agentrl.engines.torch.model.images import ServedImages
from agentrl.engines.torch.model.transformers_decoder import (
    CacheMasks,
    RowCache,
    TransformersDecoder,
)


@dataclass(frozen=True, slots=True)
class ImageDecoder(TransformersDecoder):
    """``Forward`` by a transformers model of ``families.VISION``; negative ids are images' tokens.

    An image's tokens take fewer positions than places in the row. How far what follows is shifted
    lies in the ``KVCache``, beside the keys that were turned by it.

    Args:
        images: of the ids.
    """

    images: ServedImages = field(kw_only=True)

    def _logits(
        self,
        tokens: Tensor,
        positions: Tensor,
        rows: Tensor,
        cache: RowCache,
        num_keys: int,
        kept: Tensor | int,
    ) -> Tensor:
        module: Any = self.module
        embedded = module.get_input_embeddings()(tokens.clamp(min=0))
        shifts = self.kv.shifts(rows, positions[:, :1])
        planes = (positions + shifts).expand(3, *positions.shape)
        found = self.images.find(tokens)
        deepstack = {}
        if found is not None:
            behind = shifts + found.shifts.cumsum(1)
            planes = positions + behind - found.shifts + found.moves
            shifts = behind
            features = found.features.to(embedded.dtype)
            embedded[found.mask] = features[0]
            if len(features) > 1:
                deepstack = {
                    "visual_pos_masks": found.mask,
                    "deepstack_visual_embeds": list(features[1:]),
                }
        self.kv.note_shifts(rows, positions, shifts)
        hidden = module.model.language_model(
            inputs_embeds=embedded,
            position_ids=planes,
            attention_mask=self.masks.build(positions, num_keys, self.kv.keys.dtype),
            past_key_values=cache,
            use_cache=True,
            **deepstack,
        ).last_hidden_state
        hidden = hidden[:, -kept:] if isinstance(kept, int) else hidden[:, kept]
        logits: Tensor = module.get_output_embeddings()(hidden)
        return logits.float()


def decoder_of(
    module: Any,
    kv: KVCache,
    masks: CacheMasks,
    recorder: ExpertRecorder | None,
    images: ServedImages | None,
) -> TransformersDecoder:
    """The forward over a cache's rows, with images where the model sees."""
    if images is None:
        return TransformersDecoder(module, kv, masks, recorder)
    return ImageDecoder(module, kv, masks, recorder, images=images)
