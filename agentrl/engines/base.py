"""The two faces of an engine: what its many clients call, and what its one owner calls (docs/rollouts.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from agentrl.types import Completion, EngineInfo, GenerateRequest

if TYPE_CHECKING:
    import torch

__all__ = [
    "EngineControl",
    "EngineHealth",
    "EngineLayout",
    "EngineNotice",
    "PauseMode",
    "RolloutEngine",
    "Tag",
    "UpdateSession",
]

PauseMode = Literal["drain", "retract", "in_place"]
Tag = Literal["weights", "kv_cache", "graphs"]


class RolloutEngine(Protocol):
    """Tokens in, tokens out, for many clients at once; usable from any event loop."""

    async def generate(self, request: GenerateRequest) -> Completion:
        """Returns only when the completion is finished, its caller cancelled, or the engine failed.

        Cancelling the awaiting task aborts the request. A call changes nothing outside the engine, so a failed
        one may be retried from the same ids.

        Raises:
            EngineError: ids outside the vocabulary, prompt and ``max_new_tokens`` over the context, a version
                below ``min_version``, a deadline spent, or the engine's own failure; ``retryable`` tells which.
        """
        ...

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Ends requests in flight with finish_reason ``abort``; unknown ids are ignored."""
        ...

    async def release(self, session_id: str) -> None:
        """Frees what is kept for an episode; unknown ids are ignored."""
        ...

    def info(self) -> EngineInfo:
        """What a client must know, at the version served now."""
        ...


@dataclass(frozen=True, slots=True)
class EngineLayout:
    """How an engine wants its weights: ``whole`` tensors under Hugging Face names (the engine cuts)."""

    kind: Literal["whole"]
    dtype: Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """``state`` is what the engine does now; a ``torn`` one answers nothing until it is replaced."""

    state: Literal["serving", "paused", "asleep", "updating", "torn", "dead"]
    running: int
    waiting: int
    kv_tokens: int
    policy_version: int


@dataclass(frozen=True, slots=True)
class EngineNotice:
    """What an engine overcame by itself, and a person should know.

    Args:
        event: its name in ``events.jsonl``, such as ``server_lost``.
        message: what happened, and what comes of it.
        counts: by the metric's name.
    """

    event: str
    message: str
    counts: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message


class UpdateSession(Protocol):
    """One weight update. Between ``begin_update`` and ``commit`` no forward runs."""

    def put(self, name: str, tensor: torch.Tensor) -> None:
        """One whole tensor under its Hugging Face name."""
        ...

    def commit(self) -> None:
        """Serves the new weights under their version; KV of older ones is dropped.

        Raises:
            EngineError: a tensor is missing or has another shape; the engine is torn.
        """
        ...

    def abort(self) -> None:
        """Gives up: the engine is torn where anything was put."""
        ...


class EngineControl(Protocol):
    """For exactly one owner in a run. Calls block; they are never made from an event loop."""

    def pause(self, mode: PauseMode) -> None:
        """``drain`` waits for running requests; ``retract`` drops their KV and re-prefills after ``resume``;
        ``in_place`` keeps KV of the older version."""
        ...

    def resume(self) -> None: ...

    def sleep(self, tags: Sequence[Tag]) -> None:
        """Releases memory; requires idle or paused by ``retract``."""
        ...

    def wake(self, tags: Sequence[Tag]) -> None: ...

    def layout(self) -> EngineLayout: ...

    def begin_update(self, version: int) -> UpdateSession:
        """Requires a paused engine."""
        ...

    def checksum(self) -> Mapping[str, int]:
        """For each Hugging Face tensor Σ bits_i·(2i+1) mod 2**64 over its flat index i in the served dtype."""
        ...

    def health(self) -> EngineHealth: ...

    def take_notices(self) -> list[EngineNotice]:
        """What it overcame since the last call; from any thread."""
        ...

    def close(self) -> None:
        """Ends everything that it started; requests in flight fail."""
        ...
