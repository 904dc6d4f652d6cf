"""Addresses: which of them are of the public internet, by whatever notation."""

from __future__ import annotations

import ipaddress

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
