"""C library: raw calls whose failure is an OSError."""

from __future__ import annotations

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str = "") -> int:
    """The result of a call.

    Raises:
        OSError: it is negative; the message begins with ``what``.
    """
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}" if what else os.strerror(code))
    return int(result)


def prctl(option: int, value: int) -> None:
    """``prctl(option, value)``.

    Raises:
        OSError: the kernel refused.
    """
    checked(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0))
