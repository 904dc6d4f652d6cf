"""The one way out of a sandbox that may use the network: a proxy that lets through what a list allows."""

from __future__ import annotations

from .allow import AllowList
from .server import ProxyServer

__all__ = ["AllowList", "ProxyServer"]
