"""Which server gets a request: the one that holds the episode's KV cache, otherwise the least
loaded one.
"""

from __future__ import annotations

from collections.abc import Collection

from agentrl.engines.servers.server import Server


class Router:
    """Sessions to servers. Used from one event loop.

    Args:
        servers: all there are; those that do not serve get nothing.
    """

    def __init__(self, servers: Collection[Server]) -> None:
        self._servers = servers
        self._homes: dict[str, Server] = {}

    def choose(self, session_id: str, avoid: Collection[Server] = ()) -> Server | None:
        """The server of a session's next request, which becomes its home; None where none serves.

        Load is the requests in flight, then the sessions that live there, then the order of the
        servers.

        Args:
            session_id: the episode.
            avoid: servers that failed this very request; taken only where no other serves.
        """
        home = self._homes.get(session_id)
        if home is not None and home.serving and home not in avoid:
            return home
        homes = list(self._homes.values())
        able = [server for server in self._servers if server.serving]
        chosen = min(
            able,
            key=lambda server: (server in avoid, server.running, homes.count(server)),
            default=None,
        )
        if chosen is not None:
            self._homes[session_id] = chosen
        return chosen

    def forget(self, session_id: str) -> None:
        """A session ended."""
        self._homes.pop(session_id, None)
