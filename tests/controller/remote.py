"""Remote folders of a test: a folder of this machine by its URL, and a bucket of moto's server."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from tests.kit.http import free_port
from tests.kit.waiting import DEADLINE_S

BUCKET = "s3://agentrl"


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The URL of moto's server, which takes seconds to start.

    Needs what ``make s3`` installs, on PYTHONPATH.
    """
    pytest.importorskip("moto", reason="needs moto (make s3)")
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        until = time.monotonic() + 60
        while True:
            with suppress(httpx.TransportError):
                httpx.get(f"{url}/moto-api/", timeout=5)
                break
            assert server.poll() is None, "moto's server ended"
            assert time.monotonic() < until, "moto's server does not answer"
        yield url
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def s3_bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty folder of the server's only bucket, which s3fs finds by the
    environment.
    """
    s3fs = pytest.importorskip("s3fs", reason="needs s3fs (make s3)")
    httpx.post(f"{s3_server}/moto-api/reset", timeout=DEADLINE_S).raise_for_status()
    use_endpoint(monkeypatch, s3_server)
    s3fs.S3FileSystem().mkdir(BUCKET)
    yield f"{BUCKET}/runs/a"
    s3fs.S3FileSystem.clear_instance_cache()


def use_endpoint(patch: pytest.MonkeyPatch, url: str) -> None:
    """S3 is at ``url`` from here on, and asked once."""
    import s3fs

    patch.setenv("AWS_ENDPOINT_URL", url)
    patch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    patch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()
