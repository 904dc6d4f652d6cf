"""Ray runtime: the actor that hosts a worker, and calls of such actors with deadlines and named
deaths."""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from agentrl.controller.cluster.ray_cluster import listening_address, node_answers
from agentrl.controller.cluster.rollout_pool import Incident, ProcessInfo, RolloutWorkerSpec
from agentrl.controller.cluster.worker import RoleSpec, Worker
from agentrl.controller.threads import AwakeClock
from agentrl.engines import EngineLayout
from agentrl.errors import AgentRLError, RankLostError, TrainingError, WeightMismatchError
from agentrl.rollouts import GroupOutcome
from agentrl.store import logging_to, logs
from agentrl.store.logs import StackFile, stack_in
from agentrl.store.node_files import placed
from agentrl.tools import close_shared_tools
from agentrl.types import Trajectory, file_modules
from agentrl.weight_sync import GroupRoot, WeightsReport

logger = logging.getLogger(__name__)

T = TypeVar("T")

Collected: TypeAlias = tuple[
    list[GroupOutcome], list[Incident], list[Trajectory], str, dict[str, Any]
]
"""What an actor that hosts episodes returns: groups that ended, failures that its engine survived,
attempts that ended in groups that go on, why its engine answers nothing any more, and what it
does."""

CALL_TIMEOUT_S = 1800.0
"""Deadline of any call of an actor, where ``placement.call_timeout_s`` says nothing else."""

_MOST_GIVEN = 3
"""Buckets of weights that a rank keeps for workers that come a little later than the first."""
_LOOK_S = 2.0
"""Between two questions to an actor whether it lives."""
_DEATH_S = 10.0
"""Seconds in which Ray tells of a process that died, on a busy machine too."""


def thread_env(threads: int) -> dict[str, str]:
    """The environment of an actor with so many torch and OpenMP threads."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def _watched(method: Callable[..., T]) -> Callable[..., T]:
    """A call that leaves the stacks of its process where it takes long.

    It goes around ``ray.method``: Ray reads the concurrency group of what is wrapped.
    """

    @wraps(method)
    def run(worker: _RayWorker, *args: Any, **keywords: Any) -> T:
        return worker.stacks.run(method, worker, *args, **keywords)

    return run


class _RayWorker(Worker):
    """A Worker behind Ray.

    Ray runs calls of the default group one at a time, in the order of the driver's calls: setup,
    training, updates. Calls in the group ``episodes`` run beside them, in threads of their own.

    Args:
        number: its place in its group.
        log_folder: where its records are kept as long as it lives; None keeps none.
        slow_s: after which a call leaves the stacks of the process there.
    """

    log_name: ClassVar[str]
    join = _watched(Worker.join)
    call = _watched(Worker.call)

    def __init__(
        self, number: int, log_folder: Path | None, slow_s: float = logs.SLOW_S
    ) -> None:
        self._open = ExitStack()  # of what lives as long as the actor
        log = None if log_folder is None else log_folder / f"{self.log_name}-{number}.jsonl"
        if log is not None:
            self._open.enter_context(logging_to(log))
        self.stacks = StackFile(log and log.with_suffix(".stacks"), slow_s)
        super().__init__(f"episodes-{number}")
        self._given: dict[tuple[str, int, tuple[str, ...], bool], Any] = {}
        # workers ask at once
        self._giving = threading.Lock()
        self._root = GroupRoot(str(ray.util.get_node_ip_address()))  # type: ignore[no-untyped-call]

    def listen(self) -> tuple[str, int]:
        """See ``ray_cluster.listening_address``."""
        return listening_address()

    def describe(self) -> ProcessInfo:
        return replace(super().describe(), node=ray.get_runtime_context().get_node_id())

    @_watched
    def setup(self, roles: Mapping[str, RoleSpec]) -> None:
        self._root.close()
        super().setup(placed(roles))

    @_watched
    def setup_rollouts(self, spec: RolloutWorkerSpec | None) -> EngineLayout | None:
        self.rollouts.setup(placed(spec))
        return self.rollouts.layout()

    @_watched
    def update_rollouts(self, *args: Any, joins: bool) -> list[WeightsReport]:
        return self.rollouts.update(*args, joins=joins)

    @ray.method(concurrency_group="served")
    def read_served(
        self, role: str, version: int, names: tuple[str, ...], changes: bool
    ) -> list[Any]:
        """A reference to parts of what this rank serves. Workers that ask for the same get the same
        one, so that a node takes it once."""
        key = (role, version, names, changes)
        with self._giving:
            if key not in self._given:
                self._given[key] = ray.put(self.served_parts(*key))
                if len(self._given) > _MOST_GIVEN:
                    del self._given[next(iter(self._given))]
            return [self._given[key]]

    @ray.method(concurrency_group="root")
    def call_root(self, method: str, *args: Any) -> Any:
        """A call of what sends to servers elsewhere; none waits for them."""
        return self._root(method, *args)

    @ray.method(concurrency_group="life")
    def ping(self) -> None:
        """Answers that this process lives, whatever else it does."""

    @_watched
    @ray.method(concurrency_group="episodes")
    def episodes(self, method: str, *args: Any) -> Any:
        """A call of the episode host, beside training."""
        return getattr(self.rollouts, method)(*args)

    @_watched  # type: ignore[arg-type]
    @ray.method(concurrency_group="episodes")
    def poll(self, timeout_s: float) -> Collected:
        """The next outcomes, failures that the engine survived, attempts that ended, and the
        engine's fault, looked for last: what it caused is in no earlier answer."""
        hosted = self.rollouts
        return (
            hosted.collect(timeout_s),
            hosted.take_failures(),
            hosted.take_ended(),
            hosted.fault(),
            hosted.now(),
        )

    def close(self) -> None:
        super().close()
        close_shared_tools()  # the process is killed next, and runs nothing at its exit


class _Rank(_RayWorker):
    """A rank; Ray names its process after this class."""

    log_name = "rank"


class _RolloutWorker(_RayWorker):
    """A worker that only hosts episodes; Ray names its process after this class."""

    log_name = "rollout"


# Ray itself restarts no actor: its engine and weights would be gone, and the pool starts another.
_options: dict[str, Any] = {
    "max_restarts": 0,
    "concurrency_groups": {"episodes": 4, "served": 2, "root": 1, "life": 1},
}
rank_actor: Any = ray.remote(**_options)(_Rank)
"""Ray's class of a rank's actor."""
rollout_actor: Any = ray.remote(**_options)(_RolloutWorker)
"""Ray's class of a rollout worker's actor."""


def shared(value: object) -> Any:
    """A reference to ``value`` for several actors; what a user's file defines travels by value."""
    for module in file_modules():
        ray.cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return ray.put(value)


_ADVICE = re.compile(r" (?:There are some potential root|Some common) causes")


def _why(error: BaseException) -> str:
    """Why an actor died, on one line: without Ray's table of the actor, and its advice to
    everybody."""
    lines = [
        line
        for line in str(error).splitlines()
        if line.strip() and not line.startswith("\t")
    ]
    told = " ".join(line.strip() for line in lines[1:] or lines)
    return _ADVICE.split(told)[0]


@dataclass(eq=False)
class Gathering:
    """Waits for a call of each actor.

    Args:
        calls: of the actors.
        refs: of the answers, by place.
        what: is done, for messages.
    """

    calls: ActorCalls
    refs: tuple[Any, ...]
    what: str

    def __post_init__(self) -> None:
        self._start = time.monotonic()
        self._slow_s = logs.SLOW_S
        self._waiting = list(self.refs)
        self._answers: dict[Any, Any] = {}

    def look(self, timeout_s: float) -> list[Any] | None:
        """Their answers, for which it waits so long at most; None where one is missing. The first
        failure is raised as soon as it is known."""
        while self._waiting:
            ready, self._waiting = ray.wait(self._waiting, num_returns=1, timeout=timeout_s)
            if not ready:
                self.calls.check_alive(self.what)
                self._check_time()
                return None
            (ref,) = ready
            try:
                self._answers[ref] = self.calls.get(ref, self.what, self.refs.index(ref))
            except TrainingError as error:
                self._check_died(error)
                raise
        return [self._answers[ref] for ref in self.refs]

    def _check_died(self, error: TrainingError) -> None:
        """An actor raised: where another has died, its collective broke by that.

        Raises:
            AgentRLError: of the one that died.
        """
        waiting = [] if isinstance(error, RankLostError) else self._waiting
        end = time.monotonic() + _DEATH_S
        while waiting and (left_s := end - time.monotonic()) > 0:
            ready, waiting = ray.wait(waiting, num_returns=1, timeout=left_s)
            for ref in ready:
                place = self.refs.index(ref)
                try:
                    ray.get(ref)
                except RayTaskError:
                    continue
                except RayError as raised:
                    lost = self.calls.told(raised, self.what, place)
                    assert isinstance(lost, ActorLostError), "it raised nothing itself"
                    raise self.calls.fail(lost, place) from error

    @property
    def late(self) -> list[int]:
        """The places of those that have not answered."""
        return [self.refs.index(ref) for ref in self._waiting]

    def now(self) -> dict[str, Any]:
        """Who is waited for, as JSON."""
        names = ", ".join(map(self.calls.name, self.late)) + self.calls.where(self.late)
        return {"call": self.what, "s": time.monotonic() - self._start, "waits_for": names}

    def _check_time(self) -> None:
        waited_s = time.monotonic() - self._start
        limit_s = self.calls.timeout_s
        late = ", ".join(map(self.calls.name, self.late))
        where = self.calls.where(self.late)
        if waited_s >= self._slow_s:
            fields = {"event": "slow_call", "call": self.what, "waiting_for": late}
            told = f"{self.what}: {late} did not answer within {waited_s:.0f} s yet{where}"
            logger.warning("%s", told, extra=fields)
            self._slow_s = math.inf
        if waited_s > limit_s:
            self.calls.error = RankLostError(
                f"{self.what}: {late} did not answer within {limit_s:g} s "
                f"(placement.call_timeout_s){where}"
            )
            raise self.calls.error


class ActorLostError(Exception):
    """An actor died, or does not answer; says which, and during what."""


@dataclass(eq=False)
class ActorCalls:
    """Waits for actors of one group; the first failure poisons it, and every later call raises.

    Args:
        name: what an actor is called, by its place.
        failure: an error about an actor, from a message, its place, and a traceback where there is
            one.
        timeout_s: deadline of any call.
        lost: an error about an actor that died or is silent, from a message and its place; by
            default that of ``failure``.
        answer_s: seconds in which one of ``lives`` answers that it does.
        put, kill, wait, node_answers: of Ray; a simulation gives its own.
        stacks: where an actor leaves its stacks, by its place.

    Attributes:
        begun: what is waited for, with some of what was; replaced whole.
    """

    name: Callable[[int], str]
    failure: Callable[[str, int, str], AgentRLError]
    timeout_s: float = CALL_TIMEOUT_S
    lost: Callable[[str, int], AgentRLError] | None = None
    answer_s: float = math.inf
    put: Callable[[object], Any] = shared
    kill: Callable[[Any], None] = ray.kill
    wait: Callable[..., object] = ray.wait
    node_answers: Callable[[str], bool] = node_answers
    lives: Sequence[Any] = field(default=(), init=False)
    """Actors that are asked whether they live, by their places."""
    stacks: Callable[[int], Path | None] = lambda _: None
    begun: Sequence[Gathering] = field(default=(), init=False)
    error: BaseException | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._awake = AwakeClock(time.monotonic)
        # by place, the last question whether it lives, and when that was asked
        self._asked: dict[int, tuple[Any, float]] = {}

    def check_alive(self, what: str) -> None:
        """Asks all of ``lives`` again and again, and waits for none; ``what`` is done meanwhile.

        Raises:
            AgentRLError: one has died, or does not answer: it was stopped, or its machine is out of
                reach.
        """
        now = self._awake()
        for place, actor in enumerate(self.lives):
            asked, at = self._asked.get(place, (None, -math.inf))
            if asked is not None and not ray.wait([asked], timeout=0)[0]:
                if now - at > self.answer_s:
                    raise self.fail(self.silent(what, place, self.answer_s), place)
                continue
            if asked is not None:
                self.get(asked, what, place)
            if now - at >= min(_LOOK_S, self.answer_s / 4):
                self._asked[place] = (actor.ping.remote(), now)

    def begin(self, refs: Sequence[Any], what: str) -> Gathering:
        """Calls that are under way, one of each actor; ``what`` is done, for messages."""
        self.assert_sound()
        gathering = Gathering(self, tuple(refs), what)
        self.begun = [*(own for own in self.begun if own.late), gathering]
        return gathering

    def now(self) -> list[dict[str, Any]]:
        """The calls that are waited for, as JSON."""
        return [own.now() for own in self.begun if own.late]

    def where(self, places: Sequence[int]) -> str:
        """For the end of a message: where the calls of actors are, as the stacks say that they have
        left; empty where none has left any."""
        paths = [path for path in map(self.stacks, places) if path is not None]
        return "".join(
            f"; it is in {at} ({path})" for path in paths if (at := stack_in(path))
        )

    def assert_sound(self) -> None:
        """Raises where an earlier call failed.

        Raises:
            TrainingError: the group is poisoned; of one that was lost its own error, since whoever
                calls next, from whatever thread, has lost it too.
        """
        if isinstance(self.error, RankLostError):
            raise self.error
        if self.error is not None:
            raise TrainingError(f"the group is poisoned by an earlier error: {self.error}")

    def get(self, ref: Any, what: str, place: int) -> Any:
        """One answer.

        Raises:
            AgentRLError: what the actor raised, or that it died or did not answer.
        """
        error: BaseException
        try:
            return ray.get(ref, timeout=self.timeout_s)
        except GetTimeoutError:
            error = self.silent(what, place, self.timeout_s)
        except RayError as raised:
            error = self.told(raised, what, place)
        if isinstance(error, ActorLostError):
            raise self.fail(error, place)
        # where weights differ the ranks themselves are sound
        if not isinstance(error, WeightMismatchError):
            self.error = error
        raise error

    def fail(self, lost: ActorLostError, place: int) -> AgentRLError:
        """The error of a lost actor that nothing stands in for; the group is poisoned by it."""
        text = str(lost)
        error = self.lost(text, place) if self.lost else self.failure(text, place, "")
        self.error = error
        return error

    def told(self, error: BaseException, what: str, place: int) -> BaseException:
        """What an actor raised, or that it died."""
        if not isinstance(error, RayTaskError):
            fields = {"event": "actor_died", "call": what, "actor": self.name(place)}
            logger.info("Ray tells of %s: %s", self.name(place), error, extra=fields)
            return ActorLostError(f"{what}: {self.name(place)} died: {_why(error)}")
        cause: BaseException = error.cause
        if isinstance(cause, AgentRLError):
            return cause
        return self.failure(f"{what} failed: {cause!r}", place, str(error))

    def silent(self, what: str, place: int, seconds: float) -> ActorLostError:
        """An actor that lives, as far as Ray knows, and does not answer."""
        told = f"{what}: {self.name(place)} did not answer within {seconds:.0f} s"
        return ActorLostError(told + self.where([place]))
