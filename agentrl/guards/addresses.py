"""Addresses: a host's, and which of them are of the public internet, by whatever notation."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""From a host and a port to the host's addresses."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# IANA gives public IPv6 addresses of this block alone. Outside it lie those that stand for IPv4
# ones (mapped, compatible, NAT64), site-local ones (fec0::/10), and what is not yet given to
# anybody.
_GIVEN = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC = (
    # 6to4 (RFC 3056).
    ipaddress.IPv6Network("2002::/16"),
    # Teredo (RFC 4380).
    ipaddress.IPv6Network("2001::/32"),
    # Documentation (RFC 9637).
    ipaddress.IPv6Network("3fff::/20"),
    # Relays of 6to4 (RFC 7526).
    ipaddress.IPv4Network("192.88.99.0/24"),
)


def is_public(address: str | Address) -> bool:
    """Whether an address is one of the open internet.

    Args:
        address: an address, or its text; a zone behind it is passed over.

    Raises:
        ValueError: the text is no address.
    """
    if isinstance(address, str):
        address = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address not in _GIVEN:
            return False
    return (
        address.is_global
        and not address.is_multicast
        and not any(address in network for network in _NOT_PUBLIC)
    )


def in_url(host: str) -> str:
    """A host as URLs have it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


async def resolved(host: str, port: int) -> Sequence[str]:
    """The addresses of a host, each once, as the system knows them.

    Raises:
        OSError: it knows none.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
