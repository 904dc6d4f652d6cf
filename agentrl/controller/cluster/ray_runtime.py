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
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from agentrl.controller.cluster.ray_cluster import listening_address, node_answers
from agentrl.controller.cluster.rollout_pool import Incident, ProcessInfo, RolloutWorkerSpec
from agentrl.controller.cluster.worker import RoleSpec, Worker
from agentrl.engines import EngineLayout
from agentrl.errors import AgentRLError, TrainingError, WeightMismatchError
from agentrl.rollouts import GroupOutcome
from agentrl.store import logging_to
from agentrl.store.node_files import placed
from agentrl.tools import close_shared_tools
from agentrl.types import Trajectory, file_modules
from agentrl.weight_sync import GroupRoot, WeightsReport

logger = logging.getLogger(__name__)

Collected: TypeAlias = tuple[list[GroupOutcome], list[Incident], list[Trajectory], str]
"""What an actor that hosts episodes returns: groups that ended, failures that its engine survived,
attempts that ended in groups that go on, and why its engine answers nothing any more."""

CALL_TIMEOUT_S = 1800.0
"""Deadline of any call of an actor, where ``placement.call_timeout_s`` says nothing else."""

_MOST_GIVEN = 3
"""Buckets of weights that a rank keeps for workers that come a little later than the first."""
_SLOW_S = 60.0
"""A call that takes longer is logged, once."""


def thread_env(threads: int) -> dict[str, str]:
    """The environment of an actor with so many torch and OpenMP threads."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


class _RayWorker(Worker):
    """A Worker behind Ray.

    Ray runs calls of the default group one at a time, in the order of the driver's calls: setup,
    training, updates. Calls in the group ``episodes`` run beside them, in threads of their own.

    Args:
        number: its place in its group.
        log_folder: where its records are kept as long as it lives; None keeps none.
    """

    log_name: ClassVar[str]

    def __init__(self, number: int, log_folder: Path | None) -> None:
        self._open = ExitStack()  # of what lives as long as the actor
        if log_folder is not None:
            self._open.enter_context(logging_to(log_folder / f"{self.log_name}-{number}.jsonl"))
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

    def setup(self, roles: Mapping[str, RoleSpec]) -> None:
        self._root.close()
        super().setup(placed(roles))

    def setup_rollouts(self, spec: RolloutWorkerSpec | None) -> EngineLayout | None:
        self.rollouts.setup(placed(spec))
        return self.rollouts.layout()

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

    @ray.method(concurrency_group="episodes")
    def episodes(self, method: str, *args: Any) -> Any:
        """A call of the episode host, beside training."""
        return getattr(self.rollouts, method)(*args)

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
    "concurrency_groups": {"episodes": 4, "served": 2, "root": 1},
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
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
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
        self._slow_s = _SLOW_S
        self._waiting = list(self.refs)
        self._answers: dict[Any, Any] = {}

    def look(self, timeout_s: float) -> list[Any] | None:
        """Their answers, for which it waits so long at most; None where one is missing. The first
        failure is raised as soon as it is known."""
        while self._waiting:
            ready, self._waiting = ray.wait(self._waiting, num_returns=1, timeout=timeout_s)
            if not ready:
                self._check_time()
                return None
            (ref,) = ready
            self._answers[ref] = self.calls.get(ref, self.what, self.refs.index(ref))
        return [self._answers[ref] for ref in self.refs]

    def _check_time(self) -> None:
        waited_s = time.monotonic() - self._start
        limit_s = self.calls.timeout_s
        late = ", ".join(self.calls.name(self.refs.index(ref)) for ref in self._waiting)
        if waited_s >= self._slow_s:
            fields = {"event": "slow_call", "call": self.what, "waiting_for": late}
            logger.warning(
                "%s: %s did not answer within %.0f s yet", self.what, late, waited_s, extra=fields
            )
            self._slow_s = math.inf
        if waited_s > limit_s:
            self.calls.error = TrainingError(
                f"{self.what}: {late} did not answer within {limit_s:g} s "
                "(placement.call_timeout_s)"
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
        put, kill, wait, node_answers: of Ray; a simulation gives its own.
    """

    name: Callable[[int], str]
    failure: Callable[[str, int, str], AgentRLError]
    timeout_s: float = CALL_TIMEOUT_S
    put: Callable[[object], Any] = shared
    kill: Callable[[Any], None] = ray.kill
    wait: Callable[..., object] = ray.wait
    node_answers: Callable[[str], bool] = node_answers
    error: BaseException | None = field(default=None, init=False)

    def begin(self, refs: Sequence[Any], what: str) -> Gathering:
        """Calls that are under way, one of each actor; ``what`` is done, for messages."""
        self.assert_sound()
        return Gathering(self, tuple(refs), what)

    def assert_sound(self) -> None:
        """Raises where an earlier call failed.

        Raises:
            TrainingError: the group is poisoned.
        """
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
        error = self.failure(str(lost), place, "")
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
        return ActorLostError(f"{what}: {self.name(place)} did not answer within {seconds:.0f} s")
