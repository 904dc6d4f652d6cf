"""Whether the engine's rows can serve a transformers model: tried out with the model itself, once,
when it is loaded.

A family may want its masks in another form, count positions by itself, or keep a state that is no
keys and values. So a short sequence is computed whole and without a cache, then in pieces over
rows, and both must give the same.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Cache

from agentrl.engines.find import engines_with
from agentrl.engines.torch.kv_cache import KVCache, KVShape
from agentrl.engines.torch.model.fixed_shapes import KEYS
from agentrl.engines.torch.model.image_decoder import decoder_of
from agentrl.engines.torch.model.images import ServedImages
from agentrl.engines.torch.model.transformers_decoder import CacheMasks, MaskKind
from agentrl.engines.torch.prefill import Prefiller, WaitingPrefill
from agentrl.errors import EngineError

_LENGTH = 20
_WINDOW = 6
_FIRST = 7
_SECOND = 12
# more keys than a block of attention has
_EXACT_LENGTH = KEYS + 8
# of the logits' standard deviation; a wrong mask gives about 1
_TOLERANCE = {
    torch.float32: 1e-3,
    torch.bfloat16: 0.15,
}


def unserved(model_type: str, cause: str) -> EngineError:
    """The refusal of a model, with what it lacks."""
    return EngineError(
        f"TorchEngine cannot serve model_type={model_type!r}: {cause}; choose another model, or "
        f"the engine {engines_with('returns_ids', 'transport')}",
        retryable=False,
    )


def prove(
    module: Any, kinds: tuple[MaskKind, ...], images: ServedImages | None = None
) -> tuple[KVShape, CacheMasks]:
    """Finds the shape of a model's KV and the form of its masks.

    Args:
        module: a causal language model with its weights.
        kinds: forms of its masks, tried in this order.
        images: of a model that sees: one is tried too, cut by a chunk's end.

    Raises:
        EngineError: none of them gives what the model computes alone, or it keeps no keys and
            values.
    """
    config = module.config.get_text_config(decoder=True)
    shape = _kv_shape(module, config.model_type)
    window = getattr(config, "sliding_window", None) or 0
    causes = []
    try:
        if window:
            # the short sequence is to outgrow it
            config.sliding_window = min(window, _WINDOW)
        for kind in kinds:
            cause = _disagreement(
                module, shape, CacheMasks(kind, min(window, _WINDOW)), images
            )
            if cause is None:
                return shape, CacheMasks(kind, window)
            causes.append(f"with masks {kind!r} {cause}")
    finally:
        if window:
            config.sliding_window = window
    raise unserved(
        config.model_type,
        "its forward over rows of a cache is not its forward alone: " + "; ".join(causes),
    )


def require_exact(module: Any, shape: KVShape, masks: CacheMasks) -> None:
    """Tries out that a token's logits are the same alone and as the last of a chunk.

    Args:
        module: computed in fixed shapes.
        shape: of its KV.
        masks: of ``prove``.

    Raises:
        EngineError: they differ in a bit.
    """
    ids = _drawn(module, _EXACT_LENGTH)
    alone = _over_rows(module, shape, masks, ids, (1,), rows=1)
    chunks = _over_rows(module, shape, masks, ids, (7, 40, _EXACT_LENGTH - 4), rows=4)
    if any(not torch.equal(alone[end], found) for end, found in chunks.items()):
        raise EngineError(
            "EnginePlace.deterministic needs matrix products that round a row alike wherever it "
            f"stands, and this machine's ({torch.get_num_threads()} threads, {module.dtype}) do "
            "not; set EnginePlace.num_threads=1, or run without it",
            retryable=False,
        )


class _Recorder(Cache):  # type: ignore[misc]  # transformers' classes are untyped here
    """Notes what each layer stores."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.layers_seen: dict[int, tuple[int, int]] = {}

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        self.layers_seen[layer_idx] = (
            key_states.shape[1],
            max(key_states.shape[3], value_states.shape[3]),
        )
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0


def _kv_shape(module: Any, model_type: str) -> KVShape:
    recorder = _Recorder()
    ids = torch.zeros((1, 1), dtype=torch.int64, device=module.device)
    try:
        module(input_ids=ids, position_ids=ids, past_key_values=recorder, use_cache=True)
    except Exception as error:
        # of a family's own code, given a cache that it does not know
        raise unserved(
            model_type,
            f"it keeps more than keys and values ({type(error).__name__}: {error})",
        ) from error
    seen = recorder.layers_seen
    if not seen:
        raise unserved(model_type, "it stores no keys and values in transformers' cache")
    heads, widths = zip(*seen.values(), strict=True)
    return KVShape(max(seen) + 1, max(heads), max(widths))


def _disagreement(
    module: Any, shape: KVShape, masks: CacheMasks, images: ServedImages | None
) -> str | None:
    """How the two ways differ, or None where they agree."""
    ids = _drawn(module, _LENGTH)
    given = {"input_ids": ids[None]}
    if images is not None:
        # held, for it is served as long as it lives
        ids, given, _held = images.trial(ids)
    try:
        alone = module(**given, use_cache=False).logits[0].float()
        over_rows = _over_rows(module, shape, masks, ids, (_FIRST, _SECOND), images=images)
    except Exception as error:  # noqa: BLE001  (a family's own code, given masks that it may not know: refused by name)
        return f"it raises {type(error).__name__}: {error}"
    expected = alone[[end - 1 for end in over_rows]]
    difference = float((torch.stack([*over_rows.values()]) - expected).abs().max())
    spread = float(expected.std())
    allowed = _TOLERANCE[module.dtype] * spread
    return (
        None
        if difference <= allowed
        else f"logits differ by {difference:.3g} where {spread:.3g} is their spread"
    )


def _drawn(module: Any, length: int) -> Tensor:
    config = module.config.get_text_config(decoder=True)
    generator = torch.Generator().manual_seed(0)
    return torch.randint(int(config.vocab_size), (length,), generator=generator).to(
        module.device
    )


def _over_rows(
    module: Any,
    shape: KVShape,
    masks: CacheMasks,
    ids: Tensor,
    ends: tuple[int, ...],
    *,
    rows: int = 2,
    images: ServedImages | None = None,
) -> dict[int, Tensor]:
    """Logits by the number of tokens behind which they come: after padded chunks with these ends
    in the last of some rows, then token by token beside idle ones.
    """
    kv = KVCache(shape, rows, ids.numel(), module.dtype, module.device, KEYS)
    decoder = decoder_of(module, kv, masks, None, images)
    prefiller = Prefiller(decoder, kv, 1, ids.device, fixed=True)
    known = ids.cpu().numpy().astype(np.int32)
    logits = {}
    for first, end in itertools.pairwise((0, *ends)):
        ((_, last),) = prefiller.run([WaitingPrefill([rows - 1], known[:end], first)])
        logits[end] = last[0]
    tokens = torch.zeros(rows, dtype=ids.dtype, device=ids.device)
    positions = torch.full_like(tokens, kv.trash)
    for position in range(ends[-1], ids.numel()):
        tokens[-1], positions[-1] = ids[position], position
        logits[position + 1] = decoder.decode(tokens, positions, ((rows, kv.max_keys),))[-1]
    return logits
