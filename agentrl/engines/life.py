"""Engine life: the one state machine of every engine (serving, paused, asleep, updating, corrupt,
closed).

- Moves are made by one thread at a time: the engine's own thread, its event loop, or under its
  lock.
- ``state``, ``serves``, ``fault`` and ``policy_version`` are plain values and may be read from any
  thread.
- The clock is paused exactly while the engine is, so that no request's deadline passes meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.engines.base import EngineState, PauseMode, Tag
from agentrl.errors import EngineError
from agentrl.types import GenerateRequest
from agentrl.types.clock import PausableClock


class EngineLife:
    """State of an engine, and the moves that its owner may make.

    Attributes:
        clock: engine seconds, which deadlines of requests count in.
        paused: the mode of the last pause; None while it generates.
        asleep: what was released.
        weightless: whether weights were released since the last update: memory that comes back
            holds anything, so that only an update makes them whole.
        updating: whether a weight update is open.
        fault: why it answers nothing any more: corrupt weights; empty for a sound engine.
        closed: why it has ended; empty while it lives.
        policy_version: served now.
    """

    def __init__(self, policy_version: int = 0) -> None:
        self.clock = PausableClock()
        self.paused: PauseMode | None = None
        self.asleep: set[Tag] = set()
        self.weightless = False
        self.updating = False
        self.fault = ""
        self.closed = ""
        self.policy_version = policy_version

    @property
    def state(self) -> EngineState:
        """The state that an owner is told; the gravest one that holds."""
        if self.closed:
            return "closed"
        if self.fault:
            return "corrupt"
        if self.updating:
            return "updating"
        if self.asleep:
            return "asleep"
        return "serving" if self.paused is None else "paused"

    @property
    def serves(self) -> bool:
        """Whether tokens may be generated now."""
        return self.state == "serving"

    def pause(self, mode: PauseMode) -> None:
        """Stops generating, and the clock."""
        # The clock counts its stops: a second pause changes the mode alone.
        if self.paused is None:
            self.clock.stop()
        self.paused = mode

    def require_resumable(self) -> None:
        """Raises an EngineError where an update is open, memory is released, or weights were."""
        self.require_whole("resume")
        if self.updating or self.asleep:
            remedy = (
                "commit the update"
                if self.updating
                else f"call wake({sorted(self.asleep)})"
            )
            raise EngineError(
                f"resume: the engine is {self.state}; {remedy} first", retryable=False
            )
        self.require_weights("resume")

    def resume(self) -> None:
        """Generates again.

        Raises:
            EngineError: an update is open, memory is released, or weights were.
        """
        self.require_resumable()
        if self.paused is not None:
            self.clock.go_on()
        self.paused = None

    def sleep(self, tags: Sequence[Tag]) -> None:
        """Memory was released; requests wait until ``wake`` and ``resume``."""
        self.require_whole("sleep")
        self.asleep |= set(tags)
        self.weightless |= "weights" in tags
        # An idle engine may sleep without a pause, and deadlines of what arrives wait with it.
        if self.paused is None:
            self.pause("drain")

    def wake(self, tags: Sequence[Tag]) -> None:
        """Memory was taken back."""
        self.require_whole("wake")
        self.asleep -= set(tags)

    def require_updatable(self, version: int) -> None:
        """Raises an EngineError where the engine serves, another update is open, or the weights'
        memory is released."""
        self.require_whole("begin_update")
        if self.paused is None or self.updating or "weights" in self.asleep:
            problem, remedy = "it is serving", "call pause('retract')"
            if self.updating:
                problem, remedy = "another update is open", "commit it"
            elif self.paused is not None:
                problem, remedy = "its weights are released", "call wake(['weights'])"
            raise EngineError(
                f"begin_update({version}) needs a paused engine that holds its weights, but "
                f"{problem}; {remedy} first",
                retryable=False,
            )

    def begin_update(self, version: int) -> None:
        """Opens an update; see ``require_updatable``."""
        self.require_updatable(version)
        self.updating = True

    def end_update(self, version: int | None) -> None:
        """Closes the update: ``version`` is served from now on, None for the old one."""
        self.updating = False
        if version is not None:
            self.policy_version = version
            self.weightless = False

    def mark_corrupt(self, cause: str) -> None:
        """The weights are no longer those of one version: nothing is answered any more."""
        self.updating = False
        self.fault = (
            f"the engine's weights are corrupt ({cause}); build it again, or use another"
        )

    def close(self, reason: str) -> None:
        """The engine has ended; a later reason changes nothing."""
        self.closed = self.closed or reason

    def error(self) -> EngineError:
        """Why a request is not answered; a corrupt engine's other servers would do no better."""
        if self.fault and not self.closed:
            return EngineError(self.fault)
        return EngineError(
            f"the engine is closed ({self.closed}); build it again, or use another"
        )

    def require_version(self, request: GenerateRequest) -> None:
        """Raises an EngineError where the request needs a later version; another engine may have
        it."""
        if request.min_version > self.policy_version:
            raise EngineError(
                f"request {request.request_id!r} needs min_version={request.min_version}, the "
                f"engine serves policy_version={self.policy_version}; send it to an engine that "
                "was updated"
            )

    def require_whole(self, what: str) -> None:
        """Raises an EngineError where the engine has ended or its weights are corrupt."""
        if self.closed or self.fault:
            raise EngineError(f"{what}: {self.error()}", retryable=False)

    def require_weights(self, what: str) -> None:
        """Raises an EngineError where the engine holds no whole weights."""
        self.require_whole(what)
        if self.weightless:
            raise EngineError(
                f"{what}: the weights were released since version {self.policy_version} was "
                "sent, and memory that is taken back holds anything; publish weights first",
                retryable=False,
            )

    def require_open(self, what: str) -> None:
        """Raises an EngineError where no update is open."""
        self.require_whole(what)
        if not self.updating:
            raise EngineError(
                f"{what}: no update is open; call begin_update first", retryable=False
            )
