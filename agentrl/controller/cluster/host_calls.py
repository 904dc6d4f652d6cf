"""Host calls: calls of episode hosts in Ray actors that are under way, and questions to their
nodes and to the cluster; the answers come into one queue.

- Each call has a deadline of its own. A worker that lets one pass has failed.
- A worker gets its orders one after the other, so that none overtakes the one before.
- An answer of a worker that was given up counts for nothing.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from agentrl.controller.cluster.places import Place, Places, WorkerFault
from agentrl.controller.cluster.ray_cluster import NODE_ANSWER_S, Reservation
from agentrl.controller.cluster.ray_runtime import ActorCalls
from agentrl.controller.cluster.rollout_pool import ProcessInfo
from agentrl.controller.threads import AwakeClock, Threads

_LOOK_S = 0.5
"""Between two looks at the clock, at most."""


@dataclass(slots=True, eq=False)
class Host:
    """The actor at a place.

    Attributes:
        info: where it runs, once it has told.
        orders: each begins a call; the first of them is under way.
        told, told_at: what it told last of what it does, and when by ``time.monotonic``; before
            that when it was given its place.
    """

    place: Place
    actor: Any
    info: ProcessInfo | None = None
    orders: deque[Callable[[], None]] = field(default_factory=deque)
    told: Mapping[str, Any] = field(default_factory=dict)
    told_at: float = field(default_factory=time.monotonic)


Take: TypeAlias = Callable[[Host, Any], object]
"""Is given a host's answer."""
LookAtCluster: TypeAlias = Callable[[], tuple[Collection[str], Mapping[str, int]]]
"""Tells the nodes that are drained, and for how many workers more each node has room."""


@dataclass(slots=True, eq=False)
class _Call:
    """A call that is under way.

    Attributes:
        limit_s: seconds after which the worker is given up.
        due: when that is (``AwakeClock``).
        late: when its place is told that the answer is overdue.
    """

    host: Host
    what: str
    take: Take
    limit_s: float
    due: float
    late: float


class HostCalls:
    """Of one pool. ``next`` may be called by one thread at any time; the rest is guarded by the
    pool's lock, and waits for nothing.

    Args:
        actors: names actors and what they raise.
        places: is told of what is late, and of nodes.
        on_raised: is told what a call raised, and of which host; it says what was done too.
        answer_s: seconds in which a worker answers a call that costs it no work. After half of them
            it is late.
        reserved: where the first workers were started, which Ray may move; None for ranks.
        look: at the cluster; None for ranks.
        threads: what its waits go by.
    """

    def __init__(
        self,
        actors: ActorCalls,
        places: Places,
        on_raised: Callable[[Host, str, BaseException], None],
        *,
        answer_s: float,
        reserved: Reservation | None,
        look: LookAtCluster | None,
        threads: Threads,
    ) -> None:
        self.answer_s = answer_s
        self._actors = actors
        self._places = places
        self._on_raised = on_raised
        self._reserved = reserved
        self._look = look
        self._looker: threading.Thread | None = None
        self._under_way: dict[_Call, None] = {}  # in their order
        self._asked_nodes: set[str] = set()
        self._next_look = self._next_ask = 0.0
        # Answers and nodes' answers, each as what takes it in: from Ray's threads and those that
        # ask nodes. They take no lock, which a caller of Ray might hold.
        self._threads = threads
        self._now = AwakeClock(threads.now)
        self._inbox: queue.SimpleQueue[Callable[[], object]] = threads.mailbox()

    def begin(
        self,
        host: Host,
        what: str,
        ref: Any,
        take: Take,
        *,
        limit_s: float = math.inf,
        late_s: float = math.inf,
    ) -> None:
        """A call is under way, whose answer is given to ``take``."""
        now = self._now()
        call = _Call(host, what, take, limit_s, now + limit_s, now + late_s)
        self._under_way[call] = None
        # called by a thread of Ray's
        answered = ref.future()
        answered.add_done_callback(
            lambda done: self._inbox.put(partial(self._take, call, done))
        )

    def ask(self, host: Host, what: str, ref: Any, take: Take) -> None:
        """As ``begin``, of a call that costs the worker no work."""
        late_s = self.answer_s / 2
        self.begin(host, what, ref, take, limit_s=self.answer_s, late_s=late_s)

    def order(self, host: Host, method: str, *args: Any, take: Take | None = None) -> None:
        """Calls a method of the episode host, once the orders before have been obeyed."""

        def obeyed(host: Host, answer: Any) -> None:
            host.orders.popleft()
            if take is not None:
                take(host, answer)
            if host.orders:
                host.orders[0]()

        def give() -> None:
            ref = host.actor.episodes.remote(method, *args)
            self.ask(host, f"the call {method!r}", ref, obeyed)

        host.orders.append(give)
        if len(host.orders) == 1:
            give()

    def ask_node(self, node: str) -> None:
        """Asks whether a node answers, in a thread of its own, which ends with the answer."""

        def ask() -> None:
            answers = self._actors.node_answers(node)
            self._inbox.put(partial(self._take_node, node, answers, self._has_moved()))

        # A node out of reach takes seconds to ask, and a second question would learn no more.
        if node not in self._asked_nodes:
            self._asked_nodes.add(node)
            self._threads.begin(ask, "node")

    def _look_at_cluster(self, look: LookAtCluster) -> None:
        """Asks Ray, in a thread of its own, one at a time."""

        def ask() -> None:
            drained, room = look()
            self._inbox.put(partial(self._take_cluster, drained, room, self._has_moved()))

        if self._looker is None or not self._looker.is_alive():
            self._looker = self._threads.begin(ask, "cluster")

    def _has_moved(self) -> bool:
        """Whether Ray has moved what was reserved on a machine that it has given up."""
        return self._reserved is not None and self._reserved.has_moved()

    def forget(self, host: Host) -> None:
        """A host was given up."""
        self._under_way = {call: None for call in self._under_way if call.host is not host}

    def end(self, within_s: float) -> None:
        """Nobody asks any more: waits for who looks at the cluster, since Ray may end next."""
        if self._looker is not None:
            self._looker.join(within_s)

    def forget_all(self) -> None:
        """What is under way concerns nobody any more."""
        self._under_way.clear()
        # Who waits for the next answer is woken by this.
        self._inbox.put(lambda: None)

    def next(self) -> Callable[[], object] | None:
        """Waits for the next answer, and gives what takes it in; None where the clock is to be
        looked at first."""
        with suppress(queue.Empty):
            return self._inbox.get(timeout=max(0.0, self._next_look - self._now()))
        return None

    def look_at_clock(self) -> None:
        """Notices what actors do not answer, where it is time to look."""
        now = self._now()
        if now < self._next_look:
            return
        for call in list(self._under_way):
            place = call.host.place
            if now >= call.due:
                del self._under_way[call]
                silent = self._actors.silent(call.what, place.number, call.limit_s)
                self._places.failed(place, WorkerFault(silent))
            elif now >= call.late:
                call.late = math.inf
                if call.host.info is None:
                    self._places.overdue_start(place)
                else:
                    self._places.late(place)
        if now >= self._next_ask:
            self._next_ask = now + NODE_ANSWER_S
            for node in sorted(self._places.lost_nodes):
                self.ask_node(node)
            if self._look is not None:
                self._look_at_cluster(self._look)
        self._next_look = now + min(_LOOK_S, self.answer_s / 8)

    def _take(self, call: _Call, done: Future[Any]) -> None:
        """Takes in an answer, unless its worker was given up by now."""
        if call not in self._under_way:
            return
        del self._under_way[call]
        if (raised := done.exception()) is None:
            call.take(call.host, done.result())
            return
        error = self._actors.told(raised, call.what, call.host.place.number)
        self._on_raised(call.host, call.what, error)

    def _take_node(self, node: str, answers: bool, moved: bool) -> None:
        self._asked_nodes.discard(node)
        self._places.node_told(node, answers=answers)
        if moved:
            self._places.room_found()

    def _take_cluster(
        self, drained: Collection[str], room: Mapping[str, int], moved: bool
    ) -> None:
        self._places.cluster_seen(drained, room)
        if moved:
            self._places.room_found()
