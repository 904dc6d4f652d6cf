"""Homes of Ray: the environment of a process that starts a cluster, or joins one, for itself."""

from __future__ import annotations

import os
from pathlib import Path


def in_home(home: Path, **more: str) -> dict[str, str]:
    """This process's environment with another home folder, in which Ray keeps its token.

    A Ray that runs here has set that clusters ask for a token, of this process's home.
    """
    own = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE"}
    return {**own, "HOME": str(home), **more}
