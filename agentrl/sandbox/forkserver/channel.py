"""Channels: sockets to the sandbox host, served by one thread that resolves futures."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from agentrl.sandbox.host import frames
from agentrl.types.loop_thread import LoopThread

OnFrame = Callable[[frames.Header, list[bytes]], None]
OnEnd = Callable[[], None]
_READ_BYTES = 1 << 20
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Stream:
    """One socket: bytes out from any thread, bytes in on the I/O thread.

    Args:
        io: the thread that serves it.
        sock: a connected stream socket; owned from here on. One with TLS may be given as well.
        on_data: called on the I/O thread with what came, empty at the end; its ``FrameError`` ends
            the stream.
        on_end: called once on the I/O thread when the peer is gone or :meth:`close` was called.
    """

    def __init__(
        self,
        io: LoopThread,
        sock: socket.socket,
        on_data: Callable[[bytes], None],
        on_end: OnEnd,
    ) -> None:
        self._io = io
        self._sock = sock
        self._on_data = on_data
        self._on_end = on_end
        # Guards _out, _ended and the socket: any thread writes, the I/O thread reads and flushes.
        self._lock = threading.Lock()
        self._out: deque[tuple[memoryview, list[int]]] = deque()
        self._ended = False
        sock.setblocking(False)
        io.call(self._start)

    def write(self, data: bytes, *, fds: Sequence[int] = ()) -> None:
        """Send without blocking; what the socket does not take now follows from the I/O thread.

        Args:
            data: not empty.
            fds: descriptors to pass along; the caller may close its own at once.
        """
        with self._lock:
            if self._ended:
                # on_end tells those that wait for the reply
                return
            self._out.append((memoryview(data), [os.dup(fd) for fd in fds]))
            if len(self._out) == 1:
                self._send_waiting()
            if self._out:
                self._io.call(self._start)

    def close(self) -> None:
        """Close the socket, which ends the peer; from any thread."""
        with self._lock:
            if not self._ended:
                try:
                    self._sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    # the peer was faster; the I/O thread sees it
                    return

    def abandon(self) -> None:
        """Close this process's copy only: what a forked child does."""
        self._sock.close()

    def _start(self) -> None:
        if not self._ended:
            self._io.loop.add_reader(self._sock, self._receive)
            if self._out:
                self._io.loop.add_writer(self._sock, self._flush)
            else:
                self._io.loop.remove_writer(self._sock)

    def _receive(self) -> None:
        while not self._ended:
            try:
                # one TLS connection may not be read and written at once
                with self._lock:
                    data = self._sock.recv(_READ_BYTES)
            except _WOULD_BLOCK:
                return
            except OSError:
                data = b""
            try:
                self._on_data(data)
            except frames.FrameError:
                data = b""
            if not data:
                self._end()
            elif not isinstance(self._sock, ssl.SSLSocket):
                # TLS alone holds back what the selector does not see
                return

    def _flush(self) -> None:
        with self._lock:
            self._send_waiting()
        self._start()

    def _send_waiting(self) -> None:
        """Send what the socket takes now; with the lock held."""
        while self._out:
            data, fds = self._out[0]
            try:
                sent = (
                    socket.send_fds(self._sock, [data], fds)
                    if fds
                    else self._sock.send(data)
                )
            except _WOULD_BLOCK:
                return
            except OSError:
                # the I/O thread sees the same end
                self._drop_waiting()
                return
            self._out.popleft()
            for fd in fds:
                os.close(fd)
            if sent < len(data):
                self._out.appendleft((data[sent:], []))

    def _drop_waiting(self) -> None:
        for _, fds in self._out:
            for fd in fds:
                os.close(fd)
        self._out.clear()

    def _end(self) -> None:
        self._io.loop.remove_reader(self._sock)
        self._io.loop.remove_writer(self._sock)
        with self._lock:
            self._ended = True
            self._drop_waiting()
            self._sock.close()
        self._on_end()


class Channel(Stream):
    """A stream that carries frames.

    Args:
        io: the thread that serves it.
        sock: a connected stream socket; owned from here on.
        on_frame: called on the I/O thread with every frame.
        on_end: called once on the I/O thread when the peer is gone or :meth:`close` was called.
    """

    def __init__(
        self,
        io: LoopThread,
        sock: socket.socket,
        on_frame: OnFrame,
        on_end: OnEnd,
    ) -> None:
        decoder = frames.FrameDecoder()

        def on_data(data: bytes) -> None:
            for header, blobs in decoder.feed(data):
                on_frame(header, blobs)

        super().__init__(io, sock, on_data, on_end)

    def send(
        self, header: frames.Header, blobs: Sequence[bytes] = (), *, fds: Sequence[int] = ()
    ) -> None:
        """Send a frame without blocking, and with it the descriptors ``fds``.

        It is dropped once the stream has ended.
        """
        self.write(frames.encode(header, blobs), fds=fds)


def resolve(future: Future[Any], value: Any) -> None:
    """Give a future its value unless its waiter has gone."""
    if future.set_running_or_notify_cancel():
        future.set_result(value)


def fail(future: Future[Any], error: Exception) -> None:
    """Give a future its error unless its waiter has gone."""
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
