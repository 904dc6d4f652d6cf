"""Slot process: answers the requests of one sandbox's owner, one at a time, until it hangs up."""

from __future__ import annotations

import errno
import gc
import os
import socket
import traceback
from typing import Any, NoReturn

from .. import files, frames, proc
from .execution import HostFailure, execute
from .slot import Slot, SlotConfig

_MAX_LISTED = 10_000
_END_S = 2.0


def slot_main(sock: socket.socket, config: SlotConfig) -> NoReturn:
    """The body of a slot process; never returns."""
    exit_code = 1
    try:
        exit_code = 0 if _serve(Slot(sock, config)) else 1
    except BaseException:  # noqa: BLE001
        # The boundary: the owner reads it, and all runs of this slot fail.
        traceback.print_exc()
    finally:
        os._exit(exit_code)


def _serve(slot: Slot) -> bool:
    """Until the owner hangs up; whether nothing that the slot ran is left."""
    try:
        slot.enter()
    except OSError as error:
        slot.send(
            {"id": 0, "failed": f"the slot could not give up its rights: {error}"}, []
        )
        return True
    slot.send({"id": 0, "scoped": slot.scoped, "cgroup": slot.bound is not None}, [])
    # A collection in a run would write to each object's header, and so copy the slot's pages.
    gc.freeze()
    while not slot.owner_gone:
        if slot.requests:
            _answer(slot, *slot.requests.popleft())
        else:
            slot.receive()
    slot.kill_all()
    return proc.kill_below((), None, proc.reap_all, _END_S)


def _answer(slot: Slot, header: frames.Header, blobs: list[bytes]) -> None:
    """Do one request and send its reply."""
    reply: dict[str, Any] = {}
    out: list[bytes] = []
    try:
        # code that closed its folder must not fail the next request
        for path in slot.own_folders:
            os.chmod(path, 0o700)
        reply, out = _done(slot, header, blobs)
    except files.PathRefused as error:
        reply["refused"] = str(error)
    except HostFailure as error:
        reply["failed"] = str(error)
    except (OSError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            reply["refused"] = f"{error}; the limit is Limits.disk_bytes"
        else:
            reply["failed"] = f"{header['op']}: {error!r}"
    slot.cancelled.discard(header["id"])
    slot.send({"id": header["id"], **reply}, out)


def _done(slot: Slot, header: frames.Header, blobs: list[bytes]) -> frames.Frame:
    """The reply's fields and blobs."""
    # what follows may write
    if slot.namespaces is not None and "limits" in header:
        slot.namespaces.bound(header["limits"])
    match header["op"]:
        case "run":
            reply, out = execute(slot, header, blobs)
            if header["id"] in slot.cancelled and reply["result"]["interpreter_ended"]:
                slot.lost_unsaid = True
            return reply, out
        case "write":
            files.write_file(slot.work, header["path"], blobs[0])
            return {}, []
        case "read":
            return {}, [files.read_file(slot.work, header["path"], header["limit"])]
        case "lines":
            data = files.read_file(slot.work, header["path"], header["limit"])
            lines, num_lines, cut = files.cut_lines(data, *header["range"])
            return {"num_lines": num_lines, "cut": cut}, [lines]
        case "list":
            return {"listed": files.list_files(slot.work, _MAX_LISTED)}, []
        case "hash":
            hashed, complete = files.hash_files(slot.work, _MAX_LISTED, header["largest"])
            return {"hashed": hashed, "complete": complete}, []
        case unknown:
            return {"failed": f"the slot knows no request {unknown!r}"}, []
