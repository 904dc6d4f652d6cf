"""Conformance suite: ``check_engine`` holds any engine to the contract, a user's own included."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from agentrl.engines.base import EnginePlace, EngineSpec, WeightSender
from agentrl.types import GenerateRequest

from .control import check_control
from .requests import check_requests
from .subject import Subject

__all__ = ["check_engine"]


def check_engine(
    spec: EngineSpec,
    place: EnginePlace,
    *,
    sender: Callable[[], WeightSender] | None = None,
    tensors: Iterable[tuple[str, Any]] = (),
    pictures: Sequence[GenerateRequest] = (),
    patience_s: float = 120.0,
) -> None:
    """Holds an engine to the contract of ``agentrl.engines.base``: it is built, used and closed,
    and with ``tensors`` built again for an update that is torn.

    Args:
        spec: of the engine.
        place: a small model's folder, and sizes. A request that fills ``context_tokens`` must run
            until something happens to it: half a second will do.
        sender: makes an engine's transport; see ``EngineSpec.build``.
        tensors: of a whole update under Hugging Face names; without any, updates are only given up.
        pictures: two requests that differ in their image alone, where the model sees.
        patience_s: how long to wait for what must happen.

    Raises:
        ConfigError: every rule that it breaks, by name, with what was found.
    """
    subject = Subject(spec, place, sender, list(tensors), pictures, patience_s)
    asyncio.run(_check(subject))
    subject.conclude(type(spec).__name__, "engines' contract (docs/engines.md)")


async def _check(subject: Subject) -> None:
    subject.check_specification()
    if not subject.broken and await subject.build():
        await check_requests(subject)
        await check_control(subject)
