"""HybridEngine: the trainer's weights handed to the engine beside it, tensor by tensor, and compared there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl.engines import EngineControl, PauseMode
from agentrl.engines.weights import WeightArray
from agentrl.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.training import Actor

__all__ = ["TrainerWeights", "WeightsReport", "publish_in_process", "update_engine"]


@dataclass(frozen=True, slots=True)
class WeightsReport:
    """What one publish did on one rank: ``bytes`` were handed over in ``seconds``."""

    version: int
    tensors: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class TrainerWeights:
    """The actor's weights on their way to another process, with the trainer's own checksums."""

    arrays: tuple[WeightArray, ...]
    checksum: Mapping[str, int]


def publish_in_process(
    actor: Actor, engine: EngineControl | None, version: int, mode: PauseMode = "retract"
) -> WeightsReport | None:
    """Moves the actor's weights to the engine beside it, one whole tensor at a time.

    Every rank must call it, also one without an engine, because gathering a sharded tensor is collective. When
    it returns, the engine serves ``version`` and its checksums equal the trainer's.

    Args:
        actor: cast to the engine's dtype first, then gathered.
        engine: paused meanwhile; None on a rank that only helps to gather.
        version: the policy version from now on.
        mode: what becomes of requests in flight; interrupted ones go on under ``version``.

    Raises:
        EngineError: a tensor is missing or misshapen, or a checksum differs; the engine then answers nothing.
    """
    if engine is None:
        for _ in actor.weights():
            pass
        actor.checksum()
        return None
    dtype = engine.layout().dtype
    return update_engine(engine, actor.weights(dtype), lambda: actor.checksum(dtype), version, mode)


def update_engine(
    engine: EngineControl,
    tensors: Iterable[tuple[str, Tensor]],
    trainer: Callable[[], Mapping[str, int]],
    version: int,
    mode: PauseMode,
) -> WeightsReport:
    """Gives an engine whole tensors by their Hugging Face names; it serves ``version`` when this returns.

    Args:
        engine: paused meanwhile.
        tensors: in the engine's dtype.
        trainer: the trainer's checksums, asked for once all tensors are put.
        version: the policy version from now on.
        mode: what becomes of requests in flight.

    Raises:
        EngineError: a tensor is missing or misshapen, or a checksum differs; the engine then answers nothing.
    """
    start = time.monotonic()
    engine.pause(mode)
    session = engine.begin_update(version)
    num_tensors = num_bytes = 0
    try:
        for name, tensor in tensors:
            session.put(name, tensor)
            num_bytes += tensor.numel() * tensor.element_size()
            num_tensors += 1
    except BaseException:
        session.abort()
        raise
    session.commit()
    try:
        _verify(trainer(), engine.checksum(), version)
    except EngineError:
        engine.close()  # it is whole, and wrong: whoever waits for it must hear so
        raise
    engine.resume()
    return WeightsReport(version, num_tensors, num_bytes, time.monotonic() - start)


def _verify(trainer: Mapping[str, int], engine: Mapping[str, int], version: int) -> None:
    differing = sorted(
        name for name in trainer.keys() | engine.keys() if trainer.get(name) != engine.get(name)
    )
    if differing:
        raise EngineError(
            f"after publish({version}) the engine's weights differ from the trainer's in {len(differing)} of "
            f"{len(trainer)} tensors, first {differing[0]!r}",
            retryable=False,
        )
