"""The proxy by itself: which hosts, which addresses, which requests; with servers of this
machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agentrl.errors import ConfigError
from agentrl.sandbox.proxy import AllowList, ProxyServer
from agentrl.sandbox.proxy.server import BadRequest, parse
from tests.kit.http import Answering, serving
from tests.kit.waiting import DEADLINE_S


class Echo(Answering):
    """Answers with the request's line, its Host and its body."""

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        said = f"{self.requestline}|{self.headers['Host']}|".encode() + body
        self.answer(said)

    do_POST = do_GET  # noqa: N815  the library's name


@pytest.fixture
def server() -> Iterator[int]:
    """The port of a server on this machine."""
    with serving(Echo) as url:
        yield int(url.rpartition(":")[2])


@contextmanager
def proxied(
    *allow: str, addresses: list[list[str]] | None = None, max_places: int = 1000
) -> Iterator[tuple[ProxyServer, str]]:
    """A proxy and its address; ``addresses`` are what each look-up of a name answers, in turn."""

    async def resolve(host: str, port: int) -> list[str]:
        assert addresses is not None
        return addresses.pop(0)

    listener = socket.create_server(("127.0.0.1", 0))
    place = "{}:{}".format(*listener.getsockname())
    resolver = None if addresses is None else resolve
    proxy = ProxyServer(listener, AllowList(allow), resolve=resolver, max_places=max_places)
    try:
        yield proxy, place
    finally:
        proxy.close()


def ask(
    place: str, url: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(place, timeout=DEADLINE_S)
    try:
        connection.request("GET" if body is None else "POST", url, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def send(place: str, raw: bytes) -> bytes:
    host, _, port = place.partition(":")
    with socket.create_connection((host, int(port)), 30) as sock:
        sock.sendall(raw)
        sock.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: sock.recv(65536), b""))


@pytest.mark.parametrize(
    ("entry", "host", "port", "permitted"),
    [
        ("pypi.org", "pypi.org", 443, True),
        ("pypi.org", "PyPI.org.", 80, True),
        ("pypi.org", "pypi.org", 8080, False),
        ("pypi.org", "evil-pypi.org", 443, False),
        ("pypi.org", "pypi.org.evil.com", 443, False),
        ("pypi.org", "www.pypi.org", 443, False),
        ("pypi.org:8080", "pypi.org", 8080, True),
        ("pypi.org:8080", "pypi.org", 443, False),
        ("*.pypi.org", "files.pypi.org", 443, True),
        ("*.pypi.org", "a.b.pypi.org", 443, True),
        ("*.pypi.org", "pypi.org", 443, False),
        ("*.pypi.org", "evilpypi.org", 443, False),
        ("10.0.0.5:8000", "10.0.0.5", 8000, True),
        ("10.0.0.5:8000", "10.0.0.6", 8000, False),
        ("[fd00::5]:8000", "fd00:0:0:0::5", 8000, True),
    ],
)
def test_who_is_permitted(entry: str, host: str, port: int, permitted: bool) -> None:
    assert AllowList([entry]).permits(host, port) is permitted


@pytest.mark.parametrize(
    "entry",
    ["", "*", "*.", "http://pypi.org", "pypi.org/x", "a b", "pypi.org:0", "pypi.org:x", "pypi.org:70000", "-a.com",  # noqa: E501
     "*.1.2.3.4", "10.0.0.5", "169.254.169.254:80", "[fe80::1]:80", "ex*mple.com", "fec0::1", "::127.0.0.1",  # noqa: E501
     "a." * 127 + "a"],
)  # fmt: skip
def test_an_entry_that_is_no_host_or_no_ones_to_give_is_a_config_error(entry: str) -> None:
    with pytest.raises(ConfigError, match=r"NetworkSpec\.allow: "):
        AllowList([entry])


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",  # noqa: E501
     "255.255.255.255", "::1", "fe80::1", "fd00:ec2::254", "::ffff:10.0.0.1", "::ffff:169.254.169.254",  # noqa: E501
     "64:ff9b::a00:1", "2002:a00:1::1", "fe80::1%eth0", "fec0::1", "::127.0.0.1", "::8.8.8.8", "::ffff:0:127.0.0.1",  # noqa: E501
     "4000::1", "192.88.99.1", "3fff::1"],
)  # fmt: skip
def test_a_name_never_leads_to_an_address_that_is_not_public(address: str) -> None:
    assert not AllowList(["pypi.org"]).permits_address("pypi.org", address)


@pytest.mark.parametrize("address", ["151.101.0.223", "2a04:4e42::223"])
def test_a_name_leads_to_public_addresses(address: str) -> None:
    assert AllowList(["pypi.org"]).permits_address("pypi.org", address)


def test_a_listed_host_answers_and_is_counted(server: int) -> None:
    with proxied(f"127.0.0.1:{server}") as (proxy, place):
        status, said = ask(place, f"http://127.0.0.1:{server}/a?b=c")
        assert (status, said) == (200, f"GET /a?b=c HTTP/1.1|127.0.0.1:{server}|".encode())
        assert proxy.counts[f"127.0.0.1:{server}", "allowed"] == 1


def test_a_body_goes_along(server: int) -> None:
    with proxied(f"127.0.0.1:{server}") as (_, place):
        body = bytes(range(256)) * 2000
        status, said = ask(place, f"http://127.0.0.1:{server}/", body)
        assert (status, said.endswith(body)) == (200, True)


def test_a_host_that_is_not_listed_is_refused_with_the_reason(server: int) -> None:
    with proxied("pypi.org") as (proxy, place):
        status, said = ask(place, f"http://127.0.0.1:{server}/")
        assert (status, b"is not among the hosts that this sandbox may reach" in said) == (
            403,
            True,
        )
        assert proxy.counts[f"127.0.0.1:{server}", "refused"] == 1


def test_names_without_end_are_counted_together() -> None:
    with proxied("*.a", max_places=10) as (proxy, place):
        for index in range(30):
            assert send(
                place, f"CONNECT host-{index}:443 HTTP/1.1\r\n\r\n".encode()
            ).startswith(b"HTTP/1.1 403")
        assert (len(proxy.counts), proxy.counts.total()) == (11, 30)
        assert proxy.counts["other hosts", "refused"] == 20


def test_a_place_is_logged_once_however_often_it_is_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO", "agentrl.sandbox.proxy"), proxied("a") as (_, place):
        for _ in range(5):
            send(place, b"CONNECT b:443 HTTP/1.1\r\n\r\n")
    assert [record.getMessage() for record in caplog.records] == [
        "a sandbox asked for CONNECT b:443: refused"
    ]
    fields = vars(caplog.records[0])
    assert (fields["event"], fields["host"], fields["outcome"]) == (
        "sandbox_host_asked",
        "b:443",
        "refused",
    )


class FullListener(socket.socket):
    """Refuses its first connection as a process without free descriptors does."""

    refused = False

    def accept(self) -> tuple[socket.socket, object]:
        if not self.refused:
            self.refused = True
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_a_proxy_that_cannot_accept_pauses_and_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener = FullListener()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    place = "{}:{}".format(*listener.getsockname())
    proxy = ProxyServer(listener, AllowList(("a",)))
    try:
        assert send(place, b"CONNECT b:443 HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 403")
    finally:
        proxy.close()
    events = [vars(record)["event"] for record in caplog.records]
    assert events == ["sandbox_proxy_paused"]


@pytest.mark.parametrize(
    "name",
    [b"a" * 60_000, b"a\nb", b"\x1b[2Ja", b"a b.a", b"[2a00::1%" + b"a" * 60_000 + b"]"],
)
def test_what_is_no_name_is_neither_logged_nor_counted(
    name: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level("DEBUG", "agentrl.sandbox.proxy"),
        proxied("*.a") as (proxy, place),
    ):
        answer = send(place, b"CONNECT " + name + b":443 HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400")
        assert len(answer) < 1000  # nothing of any length comes back
        assert not proxy.counts
    assert not caplog.records


def test_a_listed_name_that_leads_here_is_refused(server: int) -> None:
    with proxied(f"inside.example:{server}", addresses=[["127.0.0.1"]]) as (_, place):
        status, said = ask(place, f"http://inside.example:{server}/")
        assert (status, said) == (403, b"inside.example leads to no public address\n")


def test_a_name_that_leads_elsewhere_the_next_time_is_looked_up_once(server: int) -> None:
    # the second look-up, between the judgement and the connection, is the one that must not happen
    addresses = [["192.0.2.1", "10.0.0.1"], ["127.0.0.1"]]
    with proxied(f"rebinding.example:{server}", addresses=addresses) as (_, place):
        assert ask(place, f"http://rebinding.example:{server}/")[0] == 403
    assert addresses == [["127.0.0.1"]]


def test_a_tunnel_carries_bytes_both_ways() -> None:
    with socket.create_server(("127.0.0.1", 0)) as far:
        port = far.getsockname()[1]

        def echo() -> None:
            peer, _ = far.accept()
            with peer:
                while data := peer.recv(65536):
                    peer.sendall(data[::-1])

        thread = threading.Thread(target=echo)
        thread.start()
        with proxied(f"127.0.0.1:{port}") as (_, place):
            said = send(
                place, f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode() + b"\x00abc"
            )
        thread.join()
    assert said == b"HTTP/1.1 200 Connection Established\r\n\r\ncba\x00"


def test_a_second_request_behind_the_first_reaches_no_server(server: int) -> None:
    first = f"GET http://127.0.0.1:{server}/one HTTP/1.1\r\nHost: x\r\n\r\n"
    second = "GET /two HTTP/1.1\r\nHost: other\r\n\r\n"
    with proxied(f"127.0.0.1:{server}") as (_, place):
        said = send(place, (first + second).encode())
    assert b"/one" in said
    assert b"/two" not in said


def test_the_host_that_the_server_sees_is_the_one_that_was_judged(server: int) -> None:
    with proxied(f"127.0.0.1:{server}") as (_, place):
        _, said = ask(place, f"http://127.0.0.1:{server}/", Host="other.example")
    assert b"other.example" not in said


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "400"),
        (b"GET ftp://a/ HTTP/1.1\r\n\r\n", "400"),
        (b"GET http://a:x/ HTTP/1.1\r\n\r\n", "400"),
        (b"GET http://a/ HTTP/2.0\r\n\r\n", "400"),
        (b"nonsense\r\n\r\n", "400"),
        (b"CONNECT a HTTP/1.1\r\n\r\n", "400"),
        (b"CONNECT :443 HTTP/1.1\r\n\r\n", "400"),
        (b"GET http://a/ HTTP/1.1\r\nA : b\r\n\r\n", "400"),
        (
            b"GET http://a/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "400",
        ),
        (b"GET http://a/ HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "400"),
        (b"GET http://a/ HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", "413"),
        (b"CONNECT a\nb:443 HTTP/1.1\r\n\r\n", "400"),
        (b"CONNECT \x1b[2Ja:443 HTTP/1.1\r\n\r\n", "400"),
        (b"CONNECT " + b"a." * 128 + b":443 HTTP/1.1\r\n\r\n", "400"),
        (b"GET http://a\x1b[2J/ HTTP/1.1\r\n\r\n", "400"),
        (b"GET http://a/\x1b[2J HTTP/1.1\r\n\r\n", "400"),
        (b"G\xc9T http://a/ HTTP/1.1\r\n\r\n", "400"),
        (b"POST http://a/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "411"),
    ],
)
def test_what_is_no_request_to_a_proxy_is_answered_so(raw: bytes, status: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        parse(raw)
    assert refusal.value.status.startswith(status)
    with proxied("a") as (_, place):
        assert send(place, raw).startswith(f"HTTP/1.1 {status}".encode())


def test_headers_without_an_end_are_cut_off() -> None:
    with proxied("a") as (_, place):
        assert send(place, b"GET http://a/ HTTP/1.1\r\n" + b"A: b\r\n" * 20_000).startswith(
            b"HTTP/1.1 431"
        )


def test_headers_for_the_proxy_stay_with_it() -> None:
    request = parse(
        b"GET http://a/ HTTP/1.1\r\nProxy-Authorization: x\r\nConnection: keep-alive\r\nX: "
        b"y\r\n\r\n"
    )
    assert request.head == b"GET / HTTP/1.1\r\nHost: a\r\nX: y\r\nConnection: close\r\n\r\n"


def proxy_threads() -> set[threading.Thread]:
    return {
        thread for thread in threading.enumerate() if thread.name == "agentrl-sandbox-proxy"
    }


def test_closing_ends_what_is_open() -> None:
    before = proxy_threads()
    with proxied("a") as (proxy, place):
        host, _, port = place.partition(":")
        with socket.create_connection((host, int(port)), 30) as sock:
            sock.sendall(b"GET ")
            proxy.close()
            proxy.close()
            sock.settimeout(30)
            # it was closed before it was accepted
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""
    assert proxy_threads() <= before


async def test_the_system_resolves_where_nothing_else_does() -> None:
    with proxied("localhost:9") as (_, place):
        status, said = await asyncio.to_thread(ask, place, "http://localhost:9/")
    assert (status, said) == (403, b"localhost leads to no public address\n")
