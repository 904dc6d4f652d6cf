"""Remote folder: files at a URL of fsspec, such as ``s3://bucket/runs/a``.

- A file appears whole or not at all, as its file system promises it of one object.
- Any failure is a StoreError that names the URL.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from agentrl.errors import ConfigError, StoreError
from agentrl.types.user_code.load import install

__all__ = ["RemoteFolder", "is_url"]


def is_url(place: str) -> bool:
    """Whether a place is a URL rather than a path."""
    return "://" in place


class RemoteFolder:
    """A folder at a URL; nothing is asked of it before the first call.

    Args:
        url: as fsspec reads it; credentials are those of the file system's own environment.
        setting: that holds the URL, for errors.

    Raises:
        ConfigError: it is no URL, or nothing that is installed reads its kind.
    """

    def __init__(self, url: str, setting: str) -> None:
        from fsspec import url_to_fs
        from fsspec.utils import get_protocol

        if not is_url(url):
            raise ConfigError(
                f"{setting} must be a URL, such as s3://bucket/folder, got {url!r}; name one"
            )
        self.url = url.rstrip("/")
        protocol = get_protocol(url)
        # a folder of this machine has to be made; elsewhere a name alone makes it
        options = {"auto_mkdir": True} if protocol == "file" else {}
        try:
            fs, self._root = url_to_fs(self.url, **options)
        except (ImportError, ValueError) as error:
            is_s3 = protocol in ("s3", "s3a")
            remedy = install("s3") if is_s3 else "install its package of fsspec"
            raise ConfigError(
                f"{setting}={url!r} cannot be reached from here: {error}; {remedy}"
            ) from error
        self._fs: Any = fs

    def put(self, path: Path, name: str) -> None:
        """Copies a local file to ``name``."""
        with self._failing("written", name):
            self._fs.put_file(str(path), self._at(name))

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """A file for the content of ``name``, which may be there in part where the block raises."""
        with self._failing("written", name), self._fs.open(self._at(name), "wb") as file:
            yield file

    def get(self, name: str, path: Path) -> None:
        """Copies ``name`` to a local file."""
        with self._failing("read", name):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fs.get_file(self._at(name), str(path))

    def text(self, name: str) -> str:
        """The content of ``name``."""
        with self._failing("read", name):
            return bytes(self._fs.cat_file(self._at(name))).decode()

    def has(self, name: str) -> bool:
        """Whether ``name`` is there."""
        with self._failing("read", name):
            # fsspec keeps listings, in which another process's writes do not show.
            self._fs.invalidate_cache()
            found: bool = self._fs.exists(self._at(name))
            return found

    def names(self, name: str = "") -> list[str]:
        """What lies directly in the folder ``name``, in order; nothing where there is none."""
        with self._failing("listed", name):
            self._fs.invalidate_cache()
            try:
                found = self._fs.ls(self._at(name), detail=False)
            except FileNotFoundError:
                return []
            return sorted({path.rstrip("/").rpartition("/")[2] for path in found} - {""})

    def stamp(self, name: str) -> str:
        """What tells one content of ``name`` from another, as its file system knows it."""
        with self._failing("looked at", name):
            return str(self._fs.checksum(self._at(name)))

    def remove(self, name: str) -> None:
        """Removes a file, or a folder with all that it holds; nothing where there is none."""
        with self._failing("removed", name):
            self._fs.invalidate_cache()
            try:
                self._fs.rm(self._at(name), recursive=True)
            except FileNotFoundError:
                return

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}" if name else str(self._root)

    @contextmanager
    def _failing(self, what: str, name: str) -> Iterator[None]:
        try:
            yield
        # boundary: each file system has errors of its own
        except Exception as error:
            why = str(error).strip() or type(error).__name__
            raise StoreError(
                f"{self.url}/{name} could not be {what}: {why.splitlines()[-1]}"
            ) from error
