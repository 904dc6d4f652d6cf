"""Optional packages: says what to install where the package that a feature needs is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from agentrl.errors import ConfigError

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "gymnasium": ("gymnasium>=1.0",),
    "math": ("math-verify>=0.9",),
    "mcp": ("anyio>=4", "httpx2>=2.0", "mcp>=2"),
    "openenv": ("websockets>=15",),
    "s3": ("s3fs>=2024.6",),
    "tensorboard": ("tensorboard>=2.18",),
}
"""Requirements of each extra of ``pyproject.toml``. Messages name these, since on the public
registry the name of this package is another project's.
"""


def install(extra: str) -> str:
    """The command that brings the packages of an extra."""
    return f"pip install {' '.join(map(repr, PACKAGES[extra]))}"


def remedy(error: BaseException) -> str:
    """``; pip install ...`` where a user's module misses a package of an extra; else empty."""
    missing = (getattr(error, "name", None) or "").partition(".")[0].replace("_", "-")
    for extra, packages in PACKAGES.items():
        if missing in (package.partition(">")[0] for package in packages):
            return f"; {install(extra)}"
    return ""


@contextmanager
def needed(what: str, extra: str) -> Iterator[None]:
    """Around the import of an optional package.

    Args:
        what: needs it, such as ``GymnasiumEnv``.
        extra: a key of ``PACKAGES``.

    Raises:
        ConfigError: the import failed; the message has the command that brings the package.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"{what} needs a package that cannot be imported: {error}; {install(extra)}"
        ) from error
