"""Launch: serves the viewer until it is interrupted, and tells people where it is."""

from __future__ import annotations

import ctypes
import html
import importlib.abc
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from agentrl.guards.addresses import in_url
from agentrl.guards.http_guard import LOOPBACK, own_hosts
from agentrl.types.machine import listening_socket

if TYPE_CHECKING:
    import uvicorn

_M_ARENA_MAX = -8
"""Of mallopt(3)."""
_OPENER = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>agentrl view</title>
<meta http-equiv="refresh" content="0;url={url}"><p><a href="{url}">Open the viewer</a></p></html>
"""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the viewer answers.

    Args:
        host: as it was asked to listen on.
        port: the port that it got.
        token: the secret of its link.
        page: the fragment of the page that opens first.
    """

    host: str
    port: int
    token: str
    page: str = ""

    @property
    def link(self) -> str:
        """What a person opens; who has it sees the run."""
        host = own_hosts(self.host)[0]
        place = f"{in_url(host)}:{self.port}"
        return f"http://{place}/?token={self.token}{self.page}"


class _NoPandas(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("the viewer does without pandas", name=name)


@contextmanager
def _without_pandas() -> Iterator[None]:
    """Where pandas is installed, pyarrow loads it at its first array: time and 35 MB, and nothing
    of the viewer uses it. Entered before anything imports pyarrow.
    """
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        # what this process does after the viewer may need it
        sys.meta_path.remove(finder)


def _share_arenas() -> None:
    """Lets all threads allocate from two of glibc's arenas: it would make one for each, of which
    each keeps what was freed.
    """
    with suppress(OSError, AttributeError):
        # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


@_without_pandas()
def serve(
    source: Path,
    *,
    host: str,
    port: int,
    allow_hosts: Sequence[str],
    announce: Callable[[Address], None],
    until: Callable[[], object] | None = None,
) -> None:
    """Serves until SIGINT or SIGTERM.

    Args:
        source: a run directory, or a folder above some.
        host, port: the address; port 0 takes a free one.
        allow_hosts: more names by which it may be asked for.
        announce: is told the address once it answers there.
        until: called on a thread of its own; when it returns, the viewer ends.

    Raises:
        StoreError: there is no run.
        MachineError: the address cannot be listened on.
    """
    _share_arenas()
    import uvicorn

    from agentrl.viewer.app import create_app

    token = secrets.token_urlsafe(24)
    app = create_app(source, token=token, allow_hosts=(*own_hosts(host), *allow_hosts))
    # Bound before the server starts, so that its port is known, and taken by nobody else.
    listening = listening_socket(host, port, "the viewer")
    address = Address(host, listening.getsockname()[1], token, app.state.page)

    class ViewerServer(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            # Ctrl-C is how a viewer ends: nothing is raised again, as uvicorn would
            self.force_exit = self.should_exit
            self.should_exit = True

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                announce(address)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # else each open page would hold up the end
            app.state.following.close()
            await super().shutdown(sockets)

    server = ViewerServer(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            http="h11",
            timeout_graceful_shutdown=1,
        )
    )
    if until is not None:
        # A daemon, since Ctrl-C ends the server before ``until`` returns.
        threading.Thread(target=_end_after, args=(until, server), daemon=True).start()
    server.run([listening])


def show(
    source: Path,
    tell: Callable[[Sequence[str]], None],
    *,
    terminal: bool,
    host: str = "127.0.0.1",
    port: int = 0,
    allow_hosts: Sequence[str] = (),
    opens: bool = True,
    until: Callable[[], object] | None = None,
) -> None:
    """Serves, tells where, and opens a browser where there is a desktop.

    Args:
        source, host, port, allow_hosts, until: as ``serve`` has them.
        tell: is given the lines of ``ways_in`` once the viewer answers.
        terminal: whether people read what is told.
        opens: whether a browser may be opened.
    """
    opened: list[Callable[[], None]] = []

    def announce(address: Address) -> None:
        lines, desktop = ways_in(address, os.environ, terminal=terminal)
        tell(lines)
        if opens and desktop:
            opened.append(open_browser(address))

    try:
        serve(
            source,
            host=host,
            port=port,
            allow_hosts=allow_hosts,
            announce=announce,
            until=until,
        )
    finally:
        for remove in opened:
            remove()


def _end_after(until: Callable[[], object], server: uvicorn.Server) -> None:
    until()
    server.should_exit = True


def ways_in(
    address: Address, environment: Mapping[str, str], *, terminal: bool
) -> tuple[list[str], bool]:
    """What a person is told, and whether a browser is opened for them.

    Args:
        address: of the viewer.
        environment: this process's.
        terminal: whether a person reads the output.

    Returns:
        The lines, the link first, and whether there is a desktop to open it on.
    """
    lines = [address.link]
    if not terminal:
        return lines, False
    connection = environment.get("SSH_CONNECTION", "").split()
    if connection:
        if address.host in LOOPBACK:
            login = f"{environment.get('USER') or '$USER'}@{connection[2]}"
            ssh_port = f" -p {connection[3]}" if connection[3:] not in ([], ["22"]) else ""
            lines.append(
                "from your own machine first: ssh -N -L "
                f"{address.port}:{in_url(address.host)}:{address.port}{ssh_port} {login}"
            )
        return lines, False
    desktop = sys.platform == "darwin" or bool(
        environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY")
    )
    return lines, desktop


def open_browser(address: Address) -> Callable[[], None]:
    """Opens the link on the desktop, without showing its token in the list of processes.

    Returns:
        What removes the file by which it was opened.
    """
    import webbrowser

    # of this user alone
    folder = Path(tempfile.mkdtemp(prefix="agentrl-view-"))
    page = folder / "open.html"
    with open(
        os.open(page, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8"
    ) as file:
        file.write(_OPENER.format(url=html.escape(address.link)))
    # on a thread of its own: some browsers return when they are closed, and ask for pages before
    opening = threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True)
    opening.start()
    return lambda: shutil.rmtree(folder, ignore_errors=True)
