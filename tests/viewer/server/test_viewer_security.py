"""Who may ask the viewer what: real requests to a viewer on a free port."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import quote

import httpx
import pytest

from agentrl.store import RunDirectory
from agentrl.viewer.launch import Address
from tests.viewer.server.viewers import Client, viewing

PATHS = ("/", "/index.html", "/app.js", "/api/runs", "/api/runs/x/tokens?id=1", "/api/none")


@contextmanager
def signed_in(address: Address) -> Iterator[httpx.Client]:
    """A browser that opened the printed link."""
    with httpx.Client(base_url=f"http://127.0.0.1:{address.port}") as client:
        entered = client.get(f"/?token={address.token}")
        assert entered.status_code == 303
        assert entered.headers["location"] == "/"
        yield client


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_nothing_answers(client: Client, path: str) -> None:
    # another user of the machine reaches the port, and has no token
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "agentrl_1=2"}):
        assert httpx.get(client.root + path, headers=headers).status_code == 401


def test_a_wrong_token_in_the_link_sets_no_cookie(client: Client) -> None:
    answer = httpx.get(f"{client.root}/?token=%ff{'x' * 50}")
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert client.address.token not in answer.text


def test_the_link_becomes_a_cookie_that_no_script_reads(client: Client) -> None:
    answer = httpx.get(f"{client.root}/?token={client.address.token}")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert client.address.token not in cookie
    with signed_in(client.address) as browser:
        assert browser.get("/api/runs").status_code == 200


def test_a_link_followed_from_another_site_enters_by_a_page_of_its_own(
    client: Client,
) -> None:
    # a browser sends no strict cookie along a redirect that another site began
    answer = httpx.get(
        f"{client.root}/?token={client.address.token}",
        headers={"Sec-Fetch-Site": "cross-site"},
    )
    assert answer.status_code == 200
    assert 'http-equiv="refresh" content="0;url=/"' in answer.text
    assert "set-cookie" in answer.headers


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "2130706433"]
)
def test_a_foreign_host_is_refused_by_name(client: Client, host: str) -> None:
    # a page whose name was rebound to this machine asks under its own name
    answer = client.get("/api/runs", headers={"Host": f"{host}:{client.address.port}"})
    assert answer.status_code == 403
    assert "--allow-host" in answer.json()["error"]


def test_known_hosts_are_the_loopback_ones_and_the_allowed(run: RunDirectory) -> None:
    with (
        viewing(run.root, allow_hosts=("Proxy.example",)) as address,
        Client(address) as client,
    ):
        for host in (
            "localhost",
            "[::1]:80",
            "proxy.example:443",
            "LOCALHOST.",
            "127.0.0.1",
        ):
            assert client.get("/api/runs", headers={"Host": host}).status_code == 200


def test_every_answer_forbids_what_is_foreign(client: Client) -> None:
    for answer in (client.get("/api/runs"), httpx.get(client.root), client.get("/none.js")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "OWN", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "OTHER PORT", "Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "OWN", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "OWN"}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_a_browser_writes_from_the_viewers_own_page_alone(
    client: Client, headers: dict[str, str], status: int
) -> None:
    names = {"OWN": client.root, "OTHER PORT": "http://127.0.0.1:1"}
    sent = {name: names.get(value, value) for name, value in headers.items()}
    key = client.get("/api/runs").json()["runs"][0]["key"]
    note = {"trajectory": "2-0-0", "text": "look"}
    with signed_in(client.address) as browser:
        answer = browser.post(f"/api/runs/{key}/notes", json=note, headers=sent)
    assert answer.status_code == status
    notes = client.get(f"/api/runs/{key}/notes").json()["notes"]
    assert len(notes) == (status == 200)


def test_a_page_of_another_origin_writes_nothing_with_the_token_either(
    client: Client,
) -> None:
    key = client.get("/api/runs").json()["runs"][0]["key"]
    note = {"trajectory": "2-0-0", "text": "look"}
    for origin, status in (("http://evil.example", 403), ("null", 403), (client.root, 200)):
        headers = {"Origin": origin}
        answer = client.post(f"/api/runs/{key}/notes", json=note, headers=headers)
        assert answer.status_code == status, origin
    assert client.post(f"/api/runs/{key}/notes", json=note).status_code == 200  # a script


def test_a_page_of_another_port_cannot_read_with_the_cookie(client: Client) -> None:
    with signed_in(client.address) as browser:
        for site in ("cross-site", "same-site"):
            answer = browser.get("/api/runs", headers={"Sec-Fetch-Site": site})
            assert answer.status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "/../pyproject.toml",
        "/..%2f..%2fapp.py",
        "/%2e%2e/app.py",
        "//etc/passwd",
        "/lib/%00",
        "/api/runs/..%2f..%2fetc",
        "/api/runs/KEY/blob/..%2f..%2frun.json",
        "/api/runs/KEY/blob/" + "0" * 64,
        "/api/runs/KEY/trajectory?id=../../run.json",
        "/api/runs/KEY/trajectory?id=%ff%fe",
    ],
)
def test_no_request_names_a_path(client: Client, path: str) -> None:
    key = client.get("/api/runs").json()["runs"][0]["key"]
    status, body = asked_plainly(client, path.replace("KEY", key))
    assert status in (400, 401, 404), body
    assert b"import" not in body
    assert b"root:" not in body


def asked_plainly(client: Client, path: str) -> tuple[int, bytes]:
    """The answer to a path that no library has tidied up before."""
    with socket.create_connection(("127.0.0.1", client.address.port), 10) as connection:
        with suppress(ConnectionError):  # it may refuse before it has read all
            connection.sendall(
                f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                f"Authorization: Bearer {client.address.token}\r\n\r\n".encode()
            )
        data = b"".join(iter(lambda: connection.recv(65536), b""))
    return int(data.split()[1]), data.partition(b"\r\n\r\n")[2]


def test_ten_megabytes_in_a_request_are_refused(client: Client) -> None:
    key = client.get("/api/runs").json()["runs"][0]["key"]
    huge = "x" * 10_000_000
    answer = client.post(
        f"/api/runs/{key}/notes", json={"trajectory": "2-0-0", "text": huge}
    )
    assert answer.status_code == 413
    with suppress(ConnectionError):  # the answer may be lost when it hangs up
        status, _ = asked_plainly(client, f"/api/runs/{key}/trajectory?id={quote(huge)}")
        assert status == 400
    assert client.get("/api/runs").status_code == 200


@pytest.mark.parametrize("body", [b"\xff\xfe{", b"[]", b"{" * 100_000])
def test_a_body_that_is_no_json_object_is_named(client: Client, body: bytes) -> None:
    key = client.get("/api/runs").json()["runs"][0]["key"]
    answer = client.post(f"/api/runs/{key}/notes", content=body)
    assert answer.status_code == 400
    assert "body must be" in answer.json()["error"]
