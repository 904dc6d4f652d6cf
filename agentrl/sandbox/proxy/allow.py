"""Allow list: the hosts that a sandbox may reach, and the addresses that it never may."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

from agentrl.errors import ConfigError
from agentrl.guards.addresses import Address, is_public

_USUAL_PORTS = frozenset({80, 443})
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*", re.ASCII)
# characters (RFC 1035, sec. 2.3.4, without the root's own)
_MAX_NAME = 253


@dataclass(frozen=True, slots=True)
class _HostPattern:
    name: str
    # ``*.name``
    below: bool
    port: int | None

    def permits(self, host: str, port: int) -> bool:
        named = host.endswith(f".{self.name}") if self.below else host == self.name
        return named and (port in _USUAL_PORTS if self.port is None else port == self.port)


class AllowList:
    """Hosts by name: ``host`` (ports 80 and 443), ``host:port``, ``*.domain``, or an address,
    ``10.0.0.5:8000``.

    A name is resolved by the proxy alone, and reached only at public addresses: one that leads to
    this machine, its network or a cloud's metadata is refused. An address of a private network may
    be listed by itself, with its port.

    Raises:
        ConfigError: an entry is none of these, or names a link-local address (a cloud's metadata).
    """

    def __init__(self, entries: Iterable[str]) -> None:
        self._entries = tuple(map(_parse, entries))

    def permits(self, host: str, port: int) -> bool:
        """Whether a request for this host, as the code wrote it, may go on."""
        return any(entry.permits(_normal(host), port) for entry in self._entries)

    def permits_address(self, host: str, address: str) -> bool:
        """Whether ``host`` may be reached at ``address``, one of those that it resolved to."""
        found = ipaddress.ip_address(address.partition("%")[0])
        return is_public(found) or (str(found) == _normal(host) and not found.is_link_local)


def is_host(text: str) -> bool:
    """Whether a text can be a host at all: a name of DNS, or an address without a zone."""
    name = text.lower().removesuffix(".")
    return (
        len(name) <= _MAX_NAME
        and "%" not in name
        and (bool(_NAME.fullmatch(name)) or _address(name) is not None)
    )


def _parse(entry: str) -> _HostPattern:
    host, port = split_port(entry.strip().lower())
    below = host.startswith("*.")
    name = _normal(host[2:] if below else host)
    address = _address(name)
    if port == 0 or not is_host(name) or (below and address is not None):
        raise ConfigError(
            f"NetworkSpec.allow: {entry!r} is no host; write host, host:port, *.domain or an "
            "address with its port"
        )
    if address is not None and address.is_link_local:
        raise ConfigError(
            f"NetworkSpec.allow: {entry!r} is link-local, as a cloud's metadata is; remove it"
        )
    if address is not None and not is_public(address) and port is None:
        raise ConfigError(
            f"NetworkSpec.allow: {entry!r} is an address of a private network; add its port"
        )
    return _HostPattern(name, below, port)


def split_port(text: str) -> tuple[str, int | None]:
    """``host:port`` or ``[v6]:port`` in two; the port is None where there is none, and 0 where it
    is no port.
    """
    host, colon, tail = text.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):
        return text.strip("[]"), None
    if not (tail.isascii() and tail.isdigit() and len(tail) <= 5 and 0 < int(tail) < 65536):
        return text, 0
    return host.strip("[]"), int(tail)


def _normal(host: str) -> str:
    host = host.lower().removesuffix(".")
    address = _address(host)
    return host if address is None else str(address)


def _address(text: str) -> Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
