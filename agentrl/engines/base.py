"""Engine contracts: the two faces of an engine, its specification, and what the two exchange
(docs/engines.md).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias

from agentrl.engines.tensor_parallel import Shards
from agentrl.types import Completion, EngineInfo, GenerateRequest
from agentrl.types.arrays import F32, I32
from agentrl.types.section import Section

if TYPE_CHECKING:
    import torch


PauseMode: TypeAlias = Literal["drain", "retract", "in_place"]
Tag: TypeAlias = Literal["weights", "kv_cache", "graphs"]
ServedDtype: TypeAlias = Literal["float32", "bfloat16"]
EngineState: TypeAlias = Literal[
    "serving", "paused", "asleep", "updating", "corrupt", "closed"
]
Served: TypeAlias = "Callable[[int], Iterable[tuple[str, torch.Tensor]]]"
"""Whole tensors of a version by their Hugging Face names, from where the ranks keep what they
serve; it raises ``StaleWeightsError`` where they serve another version by now."""


class RolloutEngine(Protocol):
    """Tokens in, tokens out, for many clients at once; usable from any event loop."""

    async def generate(self, request: GenerateRequest) -> Completion:
        """Returns only when the completion is finished, its caller cancelled, or the engine failed.

        Cancelling the awaiting task aborts the request. A call changes nothing outside the engine,
        so a failed one may be retried from the same ids.

        Raises:
            EngineError: ids outside the vocabulary, prompt and ``max_new_tokens`` over the context,
                a version below ``min_version``, a deadline spent, or the engine's own failure;
                ``retryable`` tells which.
        """

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Ends requests in flight with finish_reason ``abort``; unknown ids are ignored."""

    async def release(self, session_id: str) -> None:
        """Frees what is kept for an episode; unknown ids are ignored."""

    def info(self) -> EngineInfo:
        """What a client must know, at the version served now."""


@dataclass(frozen=True, slots=True)
class EngineLayout:
    """Form of an engine's weights. An update puts whole tensors by the folder's names.

    Args:
        dtype: as served.
        shards: what each rank of the engine holds of them, where its ranks are sent that alone;
            none where it is put whole tensors.
        restarts: whether a part of the engine may be started again between updates, and then takes
            the weights from where the ranks keep what they serve.
    """

    dtype: ServedDtype
    shards: Shards = ()
    restarts: bool = False


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """``state`` is what the engine does now; a ``corrupt`` one answers nothing until replaced."""

    state: EngineState
    running: int
    waiting: int
    kv_tokens: int
    policy_version: int


@dataclass(frozen=True, slots=True)
class EngineNotice:
    """A failure that an engine overcame by itself, for the run's log of events.

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

    def commit(self) -> None:
        """Serves the new weights under their version; KV of older ones is dropped.

        Raises:
            EngineError: a tensor is missing or has another shape; the engine is corrupt.
        """

    def abort(self) -> None:
        """Gives up: the engine is corrupt where anything was put."""


class EngineControl(Protocol):
    """For exactly one owner in a run. Calls block; they are never made from an event loop."""

    def pause(self, mode: PauseMode) -> None:
        """``drain`` waits for running requests; ``retract`` drops their KV and prefills it again
        after ``resume``; ``in_place`` keeps KV of the older version."""

    def resume(self) -> None: ...

    def sleep(self, tags: Sequence[Tag]) -> None:
        """Releases memory; requires idle or paused by ``retract``. Where weights were released,
        nothing is generated or scored until an update has committed."""

    def wake(self, tags: Sequence[Tag]) -> None:
        """Takes memory back; that of weights holds anything, and only an update fills it."""

    def layout(self) -> EngineLayout: ...

    def begin_update(self, version: int) -> UpdateSession:
        """Requires a paused engine."""

    def checksum(self) -> Mapping[str, int]:
        """``agentrl.engines.checksum.tensor_checksum`` of each Hugging Face tensor in the served
        dtype."""

    def score(self, token_ids: Sequence[int]) -> Mapping[str, F32]:
        """Log-probabilities of a text under the weights served now; requires a serving engine.

        Args:
            token_ids: n of the vocabulary, at least 2.

        Returns:
            By each server's name ``[n - 1]``: of every token but the first, given those before it,
            at temperature 1. An engine in this process has one entry.
        """

    def health(self) -> EngineHealth: ...

    def take_notices(self) -> list[EngineNotice]:
        """Failures overcome since the last call; from any thread."""

    def close(self) -> None:
        """Ends everything that it started; requests in flight fail."""


class HostedEngine(RolloutEngine, EngineControl, Protocol):
    """An engine with both faces: its host is its one owner."""


class ReadableEngine(Protocol):
    """An engine that gives its weights back. It can be sent what changed alone without a copy of
    them beside it."""

    def read(self, name: str) -> torch.Tensor:
        """A copy of a tensor in the served dtype, as it is served now or was put last."""


class MessageEngine(RolloutEngine, Protocol):
    """An engine without weights, such as a chat server; its connections close in the episodes'
    event loop."""

    async def close(self) -> None: ...


class WeightSender(Protocol):
    """A transport of tensors to servers; one object serves all updates of an engine."""

    def begin(self, update: Any) -> UpdateSession:
        """A session that puts tensors into a ``servers.update.ServerUpdate``."""

    def shards(
        self, clients: Sequence[Any], shapes: Mapping[str, tuple[int, ...]]
    ) -> Shards:
        """What each rank of a server is sent alone; none where all of them get whole tensors.

        Args:
            clients: ``servers.client.ServerClient`` of each server.
            shapes: of the folder's tensors.
        """

    def catch_up(self, update: Any) -> None:
        """Gives the update's server, which was started again, the weights of its version.

        Raises:
            StaleWeightsError: newer ones are served by now.
            EngineError: the server cannot be given them.
        """

    def close(self) -> None:
        """Ends what it keeps between updates."""


TransportName: TypeAlias = Literal["shared_memory", "http", "disk", "broadcast"]


@dataclass(frozen=True, slots=True)
class Transport:
    """A way by which weights reach an engine outside this process.

    Args:
        name: of the sender in ``agentrl.weight_sync``.
        device: of the servers, which decides a process group's backend.
        address: of the machine that broadcasts, as servers reach it; by default one that it knows.
    """

    name: TransportName
    device: Literal["cpu", "cuda"] | None = None
    address: str | None = None


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """Abilities of an engine as its section configures it: rules ask for these, never for a name.

    Args:
        returns_ids: gives token ids and logprobs, without which nothing can be trained.
        deterministic: can make a request's tokens a function of the request alone.
        images: takes images beside text.
        max_owners: processes that may build it at once; None for any number.
        transport: how weights reach it; None where they are put in this process.
        ranks_a_server: ranks of a node beside which one of them starts a server, on their GPUs
            where it takes some; 0 for an engine that each has by itself.
        gpus: that a process apart from ranks needs for it, servers and all.
        routed_experts: tells the experts that each token of a mixture went through.
    """

    returns_ids: bool = True
    deterministic: bool = False
    images: bool = False
    max_owners: int | None = None
    transport: Transport | None = None
    ranks_a_server: int = 0
    gpus: int = 1
    routed_experts: bool = False


@dataclass(frozen=True, slots=True)
class SharedGpus:
    """GPUs that an engine has in turn with the ranks that train on them.

    Args:
        ids: as ``CUDA_VISIBLE_DEVICES`` names them, one for each tensor-parallel rank.
        free_bytes: of each, while the trainer waits in the host's memory.
        trainer_bytes: that the trainer may bring back to each while the engine serves, for a
            checkpoint or a score.
    """

    ids: tuple[str, ...] = ()
    free_bytes: int = 0
    trainer_bytes: int = 0


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """Values that the run derives for an engine, whichever it is; picklable.

    Args:
        model: a Hugging Face folder, ``config.json`` and ``*.safetensors``.
        folder: for the engine's own files, such as logs of servers; made where missing.
        dtype: of weights and KV.
        device: of an engine in process, as torch names it, unless its section names another.
        context_tokens: the longest sequence, prompt and completion together.
        max_running: requests in flight at once.
        kv_tokens: positions of KV memory in all; None leaves it to the engine.
        deterministic: tokens of a request are a function of the request alone.
        num_threads: of the engine's own thread in torch; None leaves torch's setting.
        decode: ids to text, for stop strings; must itself be picklable.
        stop_strings: whether requests may have stop strings.
        server_python: interpreter of the environment that ``agentrl install`` made.
        api_key: of servers that ask for one.
        shared: the GPUs that a server has in turn with ranks; None for GPUs of its own.
        routed_experts: whether completions are to tell the experts of each token of a mixture.
    """

    model: str
    folder: str = "."
    dtype: ServedDtype = "float32"
    device: str = "cpu"
    context_tokens: int = 1024
    max_running: int = 32
    kv_tokens: int | None = None
    deterministic: bool = False
    num_threads: int | None = None
    decode: Callable[[I32], str] | None = None
    stop_strings: bool = False
    server_python: str = ""
    api_key: str | None = field(default=None, repr=False)
    shared: SharedGpus | None = None
    routed_experts: bool = False


class EngineSpec(Section):
    """An engine's section of the configuration, and how the engine is built from it.

    A specification is data: picklable, and in a module that imports nothing of its engine. A
    plug-in is named by ``rollout.engine: module:NAME`` and held to the contract by
    ``check_engine``.
    """

    section: ClassVar[str] = ""
    """Name of the section, ``rollout.<section>``."""

    @abstractmethod
    def traits(self) -> EngineTraits:
        """Abilities of the engine as configured."""

    def resolve(self, place: EnginePlace) -> EnginePlace:
        """The place with what the driver alone knows, such as a secret of its environment.

        Called once in the driver, before any process starts.

        Raises:
            MachineError: the machine lacks what the engine needs.
            ConfigError: a setting cannot be used here.
        """
        return place

    @abstractmethod
    def build(
        self, place: EnginePlace, sender: WeightSender | None = None
    ) -> HostedEngine | MessageEngine:
        """The engine, ready to serve; called in the process that hosts it.

        Args:
            place: as ``resolve`` returned it.
            sender: the transport of ``traits().transport``; None for weights that never change.
        """


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """A specification and the place it is built for: all that a host needs; picklable."""

    spec: EngineSpec
    place: EnginePlace

    def build(self, sender: WeightSender | None = None) -> HostedEngine | MessageEngine:
        """See ``EngineSpec.build``."""
        return self.spec.build(self.place, sender)
