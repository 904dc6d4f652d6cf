"""The interpreter's side of its socket, whatever the code did to it."""

from __future__ import annotations

import os
import socket

from agentrl.sandbox.host import frames
from agentrl.sandbox.host.run.session import serve

TOKEN = b"t" * 8


def test_an_interpreter_goes_on_where_the_code_gave_its_socket_a_deadline() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    if (pid := os.fork()) == 0:
        ours.close()
        try:
            serve(theirs, lambda code, env: len(code))
        finally:
            os._exit(99)
    theirs.close()
    with ours, open(os.devnull, "r+b") as null:
        for code in (b"one", b"three"):
            job = os.memfd_create("job")
            os.write(job, frames.encode({"env": {}}, [TOKEN, code]))
            os.lseek(job, 0, os.SEEK_SET)
            socket.send_fds(ours, [b"."], [null.fileno()] * 3 + [job])
            os.close(job)
            assert ours.recv(64) == TOKEN + len(code).to_bytes(4, "big")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
