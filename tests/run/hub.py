"""A stand-in for the Hugging Face hub: a server of this machine with one model or data set, and
programs that ask it.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.kit.http import Answering
from tests.kit.http import serving as serving_of
from tests.kit.waiting import DEADLINE_S

NAME = "someone/tiny-model"


class Hub(http.server.ThreadingHTTPServer):
    """Serves the files of folders by their commits; the newest is ``main``.

    Attributes:
        commits: folders by commit.
        asked: paths of files that were downloaded.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.commits: dict[str, Path] = {}
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, folder: Path) -> str:
        """A new commit; its hash."""
        commit = hashlib.sha1(str(len(self.commits)).encode()).hexdigest()
        self.commits[commit] = folder
        return commit


class Answers(Answering):
    server: Hub

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        api = re.fullmatch(
            rf"/api/(?:models|datasets)/{NAME}/(revision|tree)/([^/]+)/?(.*)", path
        )
        if path == f"/api/datasets/{NAME}":
            api = re.fullmatch("(x)(main)()", "xmain")
        file = re.fullmatch(rf"(?:/datasets)?/{NAME}/resolve/([^/]+)/(.+)", path)
        if not api and not file:
            return self._send(404, b"{}", body, {"X-Error-Code": "RepoNotFound"})
        wanted = api[2] if api else file[1] if file else ""
        commit = [*self.server.commits][-1] if wanted == "main" else wanted
        if commit not in self.server.commits:
            return self._send(404, b"{}", body, {"X-Error-Code": "RevisionNotFound"})
        folder = self.server.commits[commit]
        if file and not (folder / file[2]).is_file():
            return self._send(404, b"{}", body, {"X-Error-Code": "EntryNotFound"})
        if file:
            data = (folder / file[2]).read_bytes()
            if body:
                self.server.asked.append(file[2])
            etag = hashlib.sha1(data).hexdigest()
            return self._send(
                200, data, body, {"X-Repo-Commit": commit, "ETag": f'"{etag}"'}
            )
        assert api is not None
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        names = [str(path.relative_to(folder)) for path in files]
        if api[3]:  # a folder of the tree
            names = [name for name in names if name.startswith(f"{api[3]}/")]
            files = [folder / name for name in names]
        elif api[1] == "tree" and "recursive=false" in self.path.lower():
            names = sorted({name.partition("/")[0] for name in names})
            files = [folder / name for name in names]
        answer: object = {
            "_id": "1",
            "id": NAME,
            "sha": commit,
            "siblings": [{"rfilename": name} for name in names],
        }
        if api[1] == "tree":
            sizes = [path.stat().st_size for path in files]
            answer = [
                {
                    "type": "directory" if (folder / name).is_dir() else "file",
                    "path": name,
                    "size": size,
                    "oid": hashlib.sha1(name.encode()).hexdigest(),
                }
                for name, size in zip(names, sizes, strict=True)
            ]
        return self._send(
            200, json.dumps(answer).encode(), body, {"Content-Type": "application/json"}
        )

    def _send(
        self, status: int, data: bytes, body: bool, headers: Mapping[str, str]
    ) -> None:
        self.answer(data, status, headers, whole=body)


@contextmanager
def serving() -> Iterator[Hub]:
    hub = Hub()
    with serving_of(hub):
        yield hub


def python(
    code: str, *, endpoint: str, home: Path, args: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs Python that takes ``endpoint`` for the hub, and ``home`` for the folder of its cache."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HF_", "HUGGINGFACE"))
    }
    env = {
        **kept,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_ETAG_TIMEOUT": "20",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
