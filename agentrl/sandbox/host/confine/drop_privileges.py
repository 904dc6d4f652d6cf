"""Drop privileges: from root to a uid that owns nothing, then into bubblewrap.

A process that is root outside stays root for whatever the kernel does not map, so that bubblewrap
must not be started by it. The new uid may reach less: folders that it needs (an interpreter below
``/root``) are first mounted where it reaches them, in a mount namespace that ends with it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, NoReturn

from . import namespaces, uids

# any folder will do: what it holds is hidden from bubblewrap alone
_PLACES = (
    "/mnt",
    "/media",
    "/srv",
    "/tmp",
)


def staged(number: int) -> str:
    """What stands in bubblewrap's arguments for the folder with this number."""
    return f"@folder-{number}@"


def main() -> None:
    """The last argument is JSON: ``uid``, ``folders`` to bring along, and ``argv`` of the program
    to become.
    """
    order = json.loads(sys.argv[-1])
    try:
        _drop(order)
    except OSError as error:
        os.write(2, f"bwrap: it could not be started: {error}".encode())
        sys.exit(1)


def _drop(order: dict[str, Any]) -> NoReturn:
    namespaces.unshare(namespaces.NEW_MOUNTS)
    namespaces.keep_mounts_private()
    sources = [
        os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        for folder in order["folders"]
    ]
    stage = next(place for place in _PLACES if os.path.isdir(place))
    namespaces.mount(
        "tmpfs", stage, namespaces.NO_SETUID | namespaces.NO_DEVICES, "size=1m,mode=755"
    )
    names = {}
    for number, source in enumerate(sources):
        target = os.path.join(stage, str(number))
        os.mkdir(target)
        namespaces.bind(f"/proc/self/fd/{source}", target)
        names[staged(number)] = target
    uids.become(order["uid"])
    argv = [names.get(word, word) for word in order["argv"]]
    os.execv(argv[0], argv)
