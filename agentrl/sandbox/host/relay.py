"""Relay: the first process of a container; stands in for the owner there.

The owner speaks over standard input and output, in frames of links; the relay gives the
supervisor a control socket and each slot a socket of its own, as an owner on this machine would.

    owner ──stdin, stdout of the container──► relay (pid 1) ──a socket each──► supervisor, slots

End of file on standard input is the lifeline. When the relay ends, the kernel ends every process of
the container, since it is the first of its pid namespace.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
from collections import deque
from dataclasses import dataclass, field
from typing import NoReturn

from . import frames, supervisor

_READ_BYTES = 1 << 18
# for slots that do not read; the owner waits beyond that
_MAX_WAITING_BYTES = 64 * 2**20
_STDIN = 0
_STDOUT = 1


@dataclass
class _Link:
    """A socket to the supervisor or a slot, and what waits to be written to it."""

    sock: socket.socket
    number: int
    # Written when the socket takes it; one thread, so that no lock is needed.
    waiting: deque[memoryview] = field(default_factory=deque)
    ending: bool = False


class Relay:
    """See the module.

    Args:
        control: the socket of the supervisor.
    """

    def __init__(self, control: socket.socket) -> None:
        self.selector = selectors.DefaultSelector()
        self.links: dict[int, _Link] = {}
        self.control = control
        self.waiting_bytes = 0
        self.listening = False
        self.decoder = frames.FrameDecoder()
        self.add(control, frames.CONTROL)
        self.listen()

    def serve(self) -> None:
        """Until the owner or the supervisor is gone."""
        while True:
            for key, events in self.selector.select():
                if key.fd == _STDIN:
                    if not self.hear_owner():
                        return
                    continue
                link: _Link = key.data
                if self.links.get(link.number) is not link:
                    # ended by another event of this round
                    continue
                if events & selectors.EVENT_WRITE:
                    self.flush(link)
                if events & selectors.EVENT_READ and not self.hear(link):
                    return

    def listen(self) -> None:
        """Read from the owner while no link holds up too much."""
        wanted = self.waiting_bytes < _MAX_WAITING_BYTES
        if wanted and not self.listening:
            self.selector.register(_STDIN, selectors.EVENT_READ)
        elif self.listening and not wanted:
            self.selector.unregister(_STDIN)
        self.listening = wanted

    def hear_owner(self) -> bool:
        """One read from the owner; False at its end."""
        data = os.read(_STDIN, _READ_BYTES)
        for header, (part,) in self.decoder.feed(data):
            if header["op"] == "open":
                self.open(header["link"])
            elif (link := self.links.get(header["link"])) is not None:
                if header["op"] == "end":
                    link.ending = True
                else:
                    link.waiting.append(memoryview(part))
                    self.waiting_bytes += len(part)
                self.flush(link)
        return bool(data)

    def open(self, number: int) -> None:
        """A slot with a socket of its own; the supervisor gets the other end, and reads all the
        time.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            asked = frames.encode({"op": "open", "slot": number - 1})
            self.control.setblocking(True)
            # the next read sees its end
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.write_out(self.links[frames.CONTROL])
                socket.send_fds(self.control, [asked], [theirs.fileno()])
            self.control.setblocking(False)
        self.add(ours, number)

    def add(self, sock: socket.socket, number: int) -> None:
        sock.setblocking(False)
        link = self.links[number] = _Link(sock, number)
        self.selector.register(sock, selectors.EVENT_READ, link)

    def hear(self, link: _Link) -> bool:
        """One read from a link; False at the end of the supervisor's."""
        try:
            data = link.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return True
        except ConnectionResetError:
            data = b""
        if data:
            self.tell(frames.on_link(link.number, "data", data))
            return True
        self.drop(link)
        return link.number != frames.CONTROL

    def flush(self, link: _Link) -> None:
        """Write what the link takes now; the rest when it is ready."""
        try:
            self.write_out(link)
        except BlockingIOError:
            self.selector.modify(
                link.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, link
            )
        except (BrokenPipeError, ConnectionResetError):
            self.drop(link)
        else:
            if link.ending:
                self.drop(link)
            else:
                self.selector.modify(link.sock, selectors.EVENT_READ, link)
        self.listen()

    def write_out(self, link: _Link) -> None:
        while link.waiting:
            sent = link.sock.send(link.waiting[0])
            self.waiting_bytes -= sent
            if sent == len(link.waiting[0]):
                link.waiting.popleft()
            else:
                link.waiting[0] = link.waiting[0][sent:]

    def drop(self, link: _Link) -> None:
        """Close a link, which ends the slot behind it, and say so."""
        self.waiting_bytes -= sum(map(len, link.waiting))
        del self.links[link.number]
        self.selector.unregister(link.sock)
        link.sock.close()
        self.tell(frames.on_link(link.number, "end"))

    def tell(self, data: bytes) -> None:
        """Write to the owner, who reads all the time; where it is gone, the next read sees so."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(_STDOUT, rest) :]
            except BrokenPipeError:
                return


def main() -> NoReturn:
    """Fork the supervisor, then relay until the owner or the supervisor is gone."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        with theirs, open(os.devnull, "wb") as nothing:
            # The supervisor hears its owner on standard input, as it does without a relay.
            os.dup2(theirs.fileno(), _STDIN)
            os.dup2(nothing.fileno(), _STDOUT)
        with open("/proc/self/oom_score_adj", "w") as file:
            # the kernel ends a run before it ends the relay, and with it the container
            file.write("1000")
        supervisor.main()
        os._exit(0)
    theirs.close()
    # the first process has no default action for it
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    Relay(ours).serve()
    os._exit(0)
