"""Proxy: the only way out of a sandbox with network access; lets allowed hosts through."""

from __future__ import annotations

from .allow import AllowList
from .server import ProxyServer

__all__ = ["AllowList", "ProxyServer"]
