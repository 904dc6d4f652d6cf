"""Server client: what the pool of servers asks of one server, whichever program it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from agentrl.engines.base import EnginePlace, PauseMode, Tag
from agentrl.engines.held_weights import HeldTensor
from agentrl.engines.servers.section import ServersSpec
from agentrl.engines.tensor_parallel import Shards
from agentrl.engines.weights import WeightArray, read_config
from agentrl.errors import ConfigError, EngineError
from agentrl.types import Completion, GenerateRequest, RoutingShape

if TYPE_CHECKING:
    from torch import Tensor

NamedTensors: TypeAlias = "Sequence[tuple[str, Tensor]]"
"""Tensors of a publish, contiguous, in the served dtype."""


def dtype_name(tensor: Tensor) -> str:
    """As a folder and a server's calls have it, such as ``bfloat16``."""
    return str(tensor.dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Facts of a model's ``config.json``; one that also sees keeps its language model's apart."""

    vocab_size: int
    num_heads: int
    ties_embeddings: bool
    sees_images: bool

    @classmethod
    def read(cls, place: EnginePlace) -> ModelSizes:
        """Raises:
        DataError: the file cannot be read.
        ConfigError: ``context_tokens`` above what the model was made for.
        """
        config = read_config(place.model)
        text = config.get("text_config") or config
        longest = int(text.get("max_position_embeddings") or place.context_tokens)
        if place.context_tokens > longest:
            raise ConfigError(
                f"EnginePlace.context_tokens must be at most the model's max_position_embeddings="
                f"{longest}, got {place.context_tokens}; lower it"
            )
        tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))
        return cls(
            vocab_size=int(text["vocab_size"]),
            num_heads=int(text["num_attention_heads"]),
            ties_embeddings=bool(tied),
            sees_images="vision_config" in config,
        )


class WeightLabels:
    """Names of policy versions on servers: another owner's numbers are never taken for ours.

    Args:
        owner: unique among engines.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner

    def label(self, version: int) -> str:
        """What servers call a policy version."""
        return f"{self.owner}.{version}"

    def version_of(self, label: str) -> int:
        """The policy version that servers call so.

        Raises:
            EngineError: the label is not one of this engine's.
        """
        owner, _, version = label.partition(".")
        if owner != self.owner or not version.isdecimal():
            raise EngineError(
                f"an answer was made by weights called {label!r}, which this engine did not send; "
                "a server must have one owner",
                retryable=False,
            )
        return int(version)


@dataclass(frozen=True, slots=True)
class EncodedTensors:
    """Tensors as a kind of servers takes them in a call.

    Args:
        texts: of the call, for each rank; one where all ranks get the same.
        form: the kind's own name for what the texts are.
    """

    texts: tuple[str, ...]
    form: str | None


@dataclass(frozen=True, slots=True)
class NewVersion:
    """What a server serves from the call on that brings the last tensors of an update.

    Args:
        label: of the weights.
        flush: whether its KV cache is emptied.
    """

    label: str
    flush: bool


class ServerClient(Protocol):
    """One server's calls, from one event loop.

    Every call raises ``ServerLostError`` where the server is gone or answers nonsense, and
    ``RefusedError`` where it would refuse the same call again.
    """

    @property
    def url(self) -> str: ...

    @property
    def num_ranks(self) -> int:
        """Tensor-parallel ranks; known after ``probe``."""
        ...

    @property
    def reports_versions(self) -> bool:
        """Whether an answer says which weights made which tokens; without it a pause drains."""
        ...

    def shards(self, shapes: Mapping[str, tuple[int, ...]]) -> Shards:
        """What each rank may be sent alone; none where it takes whole tensors.

        Args:
            shapes: of all tensors of the model's folder.
        """
        ...

    async def probe(self) -> None:
        """Asks the server what it is and can do.

        Raises:
            MachineError: its version is below the least one.
        """
        ...

    async def check_model(self) -> None:
        """Raises an EngineError where it serves another model, dtype or a shorter context."""
        ...

    async def attach(self) -> bool:
        """Ends what a former owner left: requests, a pause, an open update, KV of its weights.

        Returns:
            Whether that is done; False where it still ends requests.
        """
        ...

    async def healthy(self, timeout_s: float) -> bool: ...

    async def generate(self, request: GenerateRequest, rid: str) -> Completion:
        """One completion; its duration is bounded by the caller, since a pause may last."""
        ...

    async def score(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logprobs ``[n - 1]`` of every token but the first; see ``EngineControl.score``."""
        ...

    async def abort(self, rid: str) -> None: ...

    async def pause(self, mode: PauseMode) -> None:
        """Stops generating; no request runs where it is to drain."""
        ...

    async def resume(self) -> None: ...

    async def release(self, tags: Sequence[Tag], *, running: int) -> None:
        """Gives memory back, or refuses where requests are in the way; no tags release nothing."""
        ...

    async def regain(self, tags: Sequence[Tag]) -> None: ...

    async def begin_update(self) -> None: ...

    async def end_update(self) -> None: ...

    async def label(self, label: str) -> None:
        """Names the weights served now; requests in flight go on."""
        ...

    async def load_folder(self, folder: str, new: NewVersion) -> None: ...

    async def load_tensors(
        self, tensors: EncodedTensors, new: NewVersion | None
    ) -> None: ...

    async def join_group(
        self, name: str, *, host: str, port: int, rank: int, world_size: int, backend: str
    ) -> None: ...

    async def leave_groups(self) -> None: ...

    async def receive(
        self, name: str, tensors: NamedTensors, new: NewVersion | None
    ) -> None: ...

    async def digests(self) -> Mapping[HeldTensor, str]:
        """The server's own digests of its weights, by names that servers of the same kind share;
        empty where it has none."""
        ...

    async def close(self) -> None: ...


class ServerKind(Protocol):
    """A server program: its settings, how one is started, and the client that speaks to it."""

    @property
    def spec(self) -> ServersSpec: ...

    @property
    def place(self) -> EnginePlace: ...

    @property
    def sizes(self) -> ModelSizes: ...

    @property
    def takes_changes(self) -> bool:
        """Whether an update may leave out tensors that have not changed."""
        ...

    @property
    def routing(self) -> RoutingShape | None:
        """Of a mixture whose experts the servers tell."""
        ...

    @property
    def health_s(self) -> float:
        """Seconds in which a server that is well answers ``/health``, behind what it computes."""
        ...

    def command(self, *, model: Path, port: int) -> list[str]:
        """The command line of one server.

        Args:
            model: folder of the weights that it starts with.
            port: where it listens.
        """
        ...

    def environment(self, index: int = 0) -> dict[str, str]:
        """Of the process's server of that index."""
        ...

    def client(self, name: str, url: str, labels: WeightLabels) -> ServerClient: ...

    def bucket(self, arrays: Sequence[WeightArray]) -> EncodedTensors:
        """Tensors by value."""
        ...

    def shared(self, by_rank: Sequence[bytes]) -> EncodedTensors:
        """Tensors by where they lie in memory that the servers see.

        Args:
            by_rank: those of each rank as ``[(name, tensor), ...]``, pickled as torch's
                multiprocessing does; one entry of whole ones for all ranks.
        """
        ...
