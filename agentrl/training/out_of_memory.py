"""Out of memory: what a rank did, the micro-batch in hand, and the settings to lower."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from agentrl.engines.torch.memory import out_of_memory
from agentrl.errors import TrainingError
from agentrl.training.data.packing import Packed
from agentrl.training.models.packed_model import ModelSpec


@contextmanager
def explaining_memory(what: str, spec: object, device: str) -> Iterator[None]:
    """An allocation of a role that fails within is told as a TrainingError.

    Args:
        what: is done.
        spec: the role's.
        device: of the role.

    Raises:
        TrainingError: it failed.
    """
    try:
        yield
    except Exception as error:
        packed = _in_hand(error)
        if isinstance(spec, ModelSpec):
            text = out_of_memory(
                f"{what}{_shapes(packed)}", error, _lower(spec, packed, device)
            )
            if text:
                raise TrainingError(text) from error
        raise


def _in_hand(error: BaseException) -> Packed | None:
    """The micro-batch of the innermost function that had one and that the error came through."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    values = (value for frame in reversed(frames) for value in frame.f_locals.values())
    return next((value for value in values if isinstance(value, Packed)), None)


def _shapes(packed: Packed | None) -> str:
    if packed is None:
        return ""
    # positions begin at 0 in each sample; what is on a GPU takes no more of its memory
    longest = packed.positions.cpu().max().item() + 1
    tokens, samples = packed.token_ids.numel(), packed.rows.size
    return (
        f" of a micro-batch of {tokens} tokens ({samples} samples, the longest {longest})"
    )


def _lower(spec: ModelSpec, packed: Packed | None, device: str) -> list[str]:
    """What takes less memory and is not so yet."""
    ours = spec.backend in ("fsdp2", "plain")
    # a pass without a loss weighs nothing
    learns = packed is not None and "weight" in packed.columns
    samples = 0 if packed is None else packed.rows.size
    recomputes = spec.gradient_checkpointing is True
    remedies = {
        "lower TrainConfig.micro_batch_tokens": learns and samples > 1,
        "lower TrainConfig.logprob_micro_batch_tokens": samples > 1 and not learns,
        # a micro-batch holds one sample at least
        "lower RolloutConfig.context_tokens": samples == 1,
        "set TrainConfig.gradient_checkpointing=true": learns and ours and not recomputes,
        "raise TrainConfig.offload": ours and device != "cpu" and spec.offload != "all",
        "set TrainConfig.shard=full": spec.sharding.mode != "full",
        "set ModelConfig.dtype=bfloat16": spec.dtype == "float32",
        "add ranks (PlacementConfig.world_size)": spec.backend != "plain",
    }
    return [remedy for remedy, helps in remedies.items() if helps]
