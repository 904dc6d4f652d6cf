"""Deadlines that the policy can spend: an episode that does is truncated, not failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["LimitSpentError", "within"]


class LimitSpentError(Exception):
    """A deadline of the episode or turn is spent: the policy's doing, so the episode is truncated. Says the reason."""


@asynccontextmanager
async def within(seconds: float, reason: str) -> AsyncIterator[None]:
    """Ends what it holds after ``seconds``.

    Raises:
        LimitSpentError: the time is up; its text is ``reason``.
    """
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            yield
    except TimeoutError:
        if scope.expired():
            raise LimitSpentError(reason) from None
        raise
