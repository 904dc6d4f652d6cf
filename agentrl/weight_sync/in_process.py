"""In-process sync: the trainer's weights brought to the ranks that have an engine, handed to it
tensor by tensor, and verified.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from agentrl.engines import EngineControl, PauseMode, ServedDtype
from agentrl.engines.probe import ProbeNoise
from agentrl.errors import EngineError
from agentrl.weight_sync.reshard import Resharder
from agentrl.weight_sync.verify import (
    TrainerReference,
    trainer_reference,
    verify_checksums,
    verify_probe,
)

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl.training import Actor


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WeightsReport:
    """What one publish did on one rank: ``bytes`` were handed over in ``seconds``."""

    version: int
    tensors: int
    bytes: int
    seconds: float


def publish_in_process(
    actor: Actor,
    engine: EngineControl | None,
    version: int,
    mode: PauseMode = "retract",
    noise: ProbeNoise | None = None,
    *,
    dtype: ServedDtype = "float32",
    make_room: Callable[[], None] = lambda: None,
    resharder: Resharder | None = None,
) -> WeightsReport | None:
    """Moves the actor's weights to the engine beside it, one whole tensor at a time.

    Every rank must call it, also one without an engine, which only sends what it holds. When it
    returns, the engine serves ``version`` and its weights were compared with the trainer's.

    Args:
        actor: cast to the engine's dtype before anything is sent.
        engine: paused meanwhile; None on a rank without one.
        version: the policy version from now on.
        mode: what becomes of requests in flight; interrupted ones go on under ``version``.
        noise: of the engine's earlier comparisons; None for its first.
        dtype: of the engines of other ranks, for a rank without one.
        make_room: called by every rank once nothing more is asked of the trainer, before the
            engine serves.
        resharder: as ``make_resharder`` made it on every rank; None makes one for this publish.

    Raises:
        EngineError: a tensor is missing or misshapen, or the weights differ; the engine then
            answers nothing.
    """
    dtype = dtype if engine is None else engine.layout().dtype
    resharder = resharder or make_resharder(actor, dtype, has_engine=engine is not None)
    parts = resharder.run(actor.parts(dtype))
    if engine is None:
        for _ in parts:
            pass
        trainer_reference(actor, dtype, actor.checksum(dtype))
        make_room()
        return None
    return update_engine(
        engine,
        ((part.name, part.tensor) for part in parts),
        lambda: trainer_reference(actor, dtype, actor.checksum(dtype)),
        version,
        mode,
        noise or ProbeNoise(),
        make_room,
    )


def make_resharder(actor: Actor, dtype: ServedDtype, *, has_engine: bool) -> Resharder:
    """The way of the actor's weights to the ranks that have an engine; collective, and good until
    the actor or an engine is another one."""
    held = [part.block for part in actor.parts(dtype)]
    wanted = None if has_engine else ()
    return Resharder(held, wanted, getattr(torch, dtype), actor.device)


def update_engine(
    engine: EngineControl,
    tensors: Iterable[tuple[str, Tensor]],
    trainer: Callable[[], TrainerReference],
    version: int,
    mode: PauseMode,
    noise: ProbeNoise,
    make_room: Callable[[], None] = lambda: None,
) -> WeightsReport:
    """Gives an engine whole tensors by their Hugging Face names; it serves ``version`` when this
    returns.

    Args:
        engine: paused meanwhile.
        tensors: in the engine's dtype.
        trainer: its side of the comparison, asked for once all tensors are put.
        version: the policy version from now on.
        mode: what becomes of requests in flight.
        noise: of the engine's earlier comparisons; this one is added.
        make_room: called once the trainer has told its side, before the engine serves.

    Raises:
        EngineError: a tensor is missing or misshapen, or the weights differ; the engine then
            answers nothing.
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
    reference = trainer()
    # ranks meet there: before a comparison, which one of them alone may fail
    make_room()
    try:
        verify_checksums(reference.checksum, engine.checksum(), version)
        # a paused server scores nothing
        engine.resume()
        verify_probe(engine, reference.probe, engine.layout().dtype, version, noise)
    except EngineError as error:
        logger.warning(
            "%s: the engine is closed",
            error,
            extra={"event": "weights_differ", "version": version},
        )
        # it is whole, and wrong: its clients must hear so
        engine.close()
        raise
    return WeightsReport(version, num_tensors, num_bytes, time.monotonic() - start)
