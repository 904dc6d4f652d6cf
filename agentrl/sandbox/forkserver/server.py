"""Fork server: the owner's side of a sandbox host; starts it, opens slots, ends it."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from agentrl.errors import AgentRLError, ConfigError, MachineError, SandboxError
from agentrl.sandbox.host import frames
from agentrl.sandbox.owner_id import Owner
from agentrl.sandbox.permits import FifoSemaphore
from agentrl.sandbox.proxy import AllowList, ProxyServer
from agentrl.types.loop_thread import LoopThread

from .channel import fail, resolve
from .launcher import FOLDER_PREFIX, Host, Launcher, Link, LocalLauncher, ProcessHost

_START_S = 60.0
_END_S = 5.0


@dataclass(frozen=True)
class HostSettings:
    """What makes two sandboxes share one host.

    Attributes:
        confine: Landlock, seccomp and a uid of their own; False runs the code with the owner's
            rights.
        preload: modules that every run finds imported.
        folders: folders of modules beyond the standard library that the code may read and import.
        abi_cap: use no newer Landlock ABI than this, 0 none at all, to see how an older kernel
            does.
        max_executing: runs at one time; None gives two to each core that this process may use.
        recycle_after: runs after which a new host takes its place; None keeps it.
        network: hosts that the code may reach through a proxy in this process (:class:`AllowList`).
        launcher: where the host runs.
    """

    confine: bool
    preload: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    abi_cap: int | None = None
    max_executing: int | None = None
    recycle_after: int | None = None
    network: tuple[str, ...] = ()
    launcher: Launcher = field(default_factory=LocalLauncher)

    @property
    def permits(self) -> int:
        """Runs at one time."""
        if self.max_executing:
            return self.max_executing
        affine = hasattr(os, "sched_getaffinity")
        return 2 * (len(os.sched_getaffinity(0)) if affine else os.cpu_count() or 1)

    def first_frame(self) -> dict[str, Any]:
        """What the supervisor is told at its start."""
        return {
            "confine": self.confine,
            "preload": self.preload,
            "folders": self.folders,
            "abi_cap": self.abi_cap,
            "proxied": bool(self.network),
            "folder_prefix": f"{FOLDER_PREFIX}{Owner.current()}-",
            **self.launcher.host_settings,
        }


class SlotHandle:
    """A slot process of the host, as its owner sees it: requests in, futures out."""

    # set by open_slot
    link: Link

    def __init__(self, server: ForkServer, number: int) -> None:
        self.number = number
        self.closed: Future[None] = Future()
        self.server = server
        # resolves when the slot is ready
        self.opened: Future[frames.Frame] = Future()
        # whether a memory cgroup bounds its runs, once it is open
        self.has_cgroup = False
        self._pending: dict[int, Future[frames.Frame]] = {0: self.opened}
        self._ids = itertools.count(1)
        # Guards _pending and _ended: callers ask on any thread, replies come on the I/O thread.
        self._lock = threading.Lock()
        self._ended = False

    def request(
        self, header: dict[str, Any], blobs: Sequence[bytes] = ()
    ) -> tuple[int, Future[frames.Frame]]:
        """Send a request; its number and the future of its reply."""
        number = next(self._ids)
        future = Future[frames.Frame]()
        with self._lock:
            ended = self._ended
            if not ended:
                self._pending[number] = future
        if ended:
            future.set_exception(
                SandboxError("the sandbox has ended; reset() it or open another")
            )
        else:
            self.server.num_runs += header["op"] == "run"
            self.link.send({**header, "id": number}, blobs)
        return number, future

    def close(self) -> None:
        """Hang up: the slot ends its processes, the supervisor removes its folder."""
        self.link.close()

    def kill(self) -> None:
        """End the slot by force, also where it does not listen."""
        self.server.control.send({"op": "kill", "slot": self.number})
        self.link.close()

    def gone(self, error: str | None) -> None:
        """The supervisor has removed this slot, or could not fork it."""
        with self._lock:
            opened = self._pending.pop(0, None) if error is not None else None
        if opened is not None:
            fail(opened, SandboxError(f"a sandbox could not be opened: {error}"))
        self.close()
        resolve(self.closed, None)

    def on_frame(self, header: frames.Header, blobs: list[bytes]) -> None:
        """A reply came."""
        with self._lock:
            future = self._pending.pop(header["id"], None)
        if future is self.opened:
            self.has_cgroup = header.get("cgroup", False)
        if future is not None:
            resolve(future, (header, blobs))

    def on_end(self) -> None:
        """The slot is gone; those that wait for a reply get an error."""
        with self._lock:
            self._ended = True
            pending = self._pending
            self._pending = {}
        for future in pending.values():
            fail(
                future,
                SandboxError(
                    "the sandbox's process ended before it answered; another sandbox may do"
                ),
            )


class ForkServer:
    """One host process; started on the first use and shared by every sandbox with the same
    settings.

    Args:
        settings: what the host is told at its start.
        executing: a permit for each run at one time, where it is shared with the host before this
            one.

    Attributes:
        executing: a permit for each run at one time, over all sandboxes of the host.
        num_runs: runs that its sandboxes were asked for.
        retired: it gives no more slots, and is closed after the last one.

    Raises:
        MachineError: this machine cannot host such sandboxes.
        ConfigError: a module to preload cannot be imported.
        SandboxError: the host did not start.
    """

    def __init__(
        self, settings: HostSettings, *, executing: FifoSemaphore | None = None
    ) -> None:
        self.settings = settings
        self.facts: dict[str, Any] = {}
        self.slots: dict[int, SlotHandle] = {}
        self.ended = False
        self.retired = False
        self.executing = executing or FifoSemaphore(settings.permits)
        self.num_runs = 0
        self._numbers = itertools.count()
        self._ready: Future[dict[str, Any]] = Future()
        # Guards slots, retired and ended: the supervisor's word on a slot waits until it is known.
        self._lock = threading.Lock()
        self._host: Host
        # lives as long as the host that it spawns: a death signal of the kernel's follows the
        # spawning thread, not the process
        self.io = LoopThread("agentrl-sandbox-io")
        self.io.call(self._spawn)
        self.proxy: ProxyServer | None = None
        try:
            self.facts = self._ready.result(_START_S)
            if settings.network:
                # another refuses to serve a proxy
                assert isinstance(self._host, ProcessHost)
                self.proxy = ProxyServer(self._host.listener(), AllowList(settings.network))
        except TimeoutError:
            self.close()
            raise SandboxError(
                f"the sandbox host did not start within {_START_S:g} s"
            ) from None
        except BaseException:
            # No half-started host stays: nobody else knows of its process.
            self.close()
            raise

    @property
    def control(self) -> Link:
        """The link to the supervisor."""
        return self._host.control

    def _spawn(self) -> None:
        try:
            self._host = self.settings.launcher.start(self.io, self._on_frame, self._on_end)
        except AgentRLError as error:
            fail(self._ready, error)
            return
        except OSError as error:
            fail(
                self._ready, SandboxError(f"the sandbox host could not be started: {error}")
            )
            return
        self.control.send(self.settings.first_frame())

    def retire(self) -> None:
        """Give no more slots from here on."""
        with self._lock:
            self.retired = True

    def open_slot(self) -> SlotHandle | None:
        """Fork a slot; its :attr:`SlotHandle.opened` says when it is ready. None where the host is
        retired.

        Raises:
            SandboxError: the host has ended.
        """
        slot = SlotHandle(self, next(self._numbers))
        # what the supervisor says of the slot is heard when the slot is known
        with self._lock:
            if self.retired:
                return None
            if self.ended:
                raise SandboxError(
                    "the sandbox host ended before it gave a sandbox; another may do"
                )
            slot.link = self._host.open_slot(slot.number, slot.on_frame, slot.on_end)
            self.slots[slot.number] = slot
        return slot

    def close(self) -> None:
        """End the host with everything in it."""
        if not hasattr(self, "_host"):
            # waits for a start that is under way
            self.io.stop()
        if hasattr(self, "_host"):
            self.control.close()
            self._host.end(_END_S)
            if self.proxy is not None:
                self.proxy.close()
            self.io.stop()
            self._host.clear(self.facts)

    def abandon(self) -> None:
        """In a forked child: drop the copies of the owner's sockets, so that the owner's end is
        seen.
        """
        for slot in self.slots.values():
            slot.link.abandon()
        self.control.abandon()

    def _on_frame(self, header: frames.Header, _: list[bytes]) -> None:
        match header["op"]:
            case "ready":
                resolve(self._ready, header)
            case "refused":
                fail(
                    self._ready,
                    (ConfigError if header["setting"] else MachineError)(header["why"]),
                )
            case "closed" | "open_failed":
                with self._lock:
                    slot = self.slots.pop(header["slot"])
                slot.gone(header.get("error"))

    def _on_end(self) -> None:
        with self._lock:
            self.ended = True
            slots = self.slots
            self.slots = {}
        said = self._host.said()
        error = SandboxError(f"the sandbox host ended{': ' + said if said else ''}")
        if not self._ready.done():
            fail(self._ready, error)
        for slot in slots.values():
            slot.close()
            fail(slot.closed, error)
