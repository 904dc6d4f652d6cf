"""Docker backend: the sandbox host in one hardened container of an engine with Docker's API.

``backend`` builds its sandboxes, ``images`` makes images ready ahead, ``containers`` removes what
dead owners left. Those import the Docker SDK; this module does not.
"""

from __future__ import annotations

from .settings import DockerSettings

__all__ = ["DockerSettings"]
