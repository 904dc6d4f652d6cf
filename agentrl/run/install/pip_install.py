"""Runs ``pip install`` and says how far it is: what is downloaded, how much of it, what is
installed.

``make`` runs this file before anything is installed, so that it needs the standard library alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

_UNITS = {"bytes": 1, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
_FILE = re.compile(
    r"\s*(?P<how>Downloading|Using cached|Processing) (?P<file>\S+)( \((?P<size>[\d.]+) "
    r"(?P<unit>\w+)\))?"
)
_LISTED = re.compile(r"Installing collected packages: (?P<names>.+)")
_LARGE = 10e6  # bytes of a file that is named
_REFRESH_S, _PATIENCE_S = 0.5, 15.0  # between two looks at a terminal, and two lines elsewhere
_KEPT_LINES = 15


class Progress:
    """What pip has said and done so far.

    Args:
        folder: where pip keeps what it downloads.
        site: where it installs.
    """

    def __init__(self, folder: Path, site: Path) -> None:
        self._folder = folder
        self._site = site
        self._before = self._num_installed()
        self._found = self._files = self._packages = 0
        self._whole = 0.0  # bytes of the files that pip has named
        self._name = self._size = ""  # of the newest file; its size where it is downloaded
        self._done = False

    def hear(self, line: str) -> str | None:
        """Take a line of pip's; what is worth a line of its own, if anything is."""
        if line.startswith("Collecting "):
            self._found += 1
        elif match := _LISTED.match(line):
            self._packages = match["names"].count(",") + 1
            return f"installing {self._packages} packages, {_megabytes(self._whole)} of files"
        elif line.startswith("Successfully installed"):
            self._done = True
        elif (match := _FILE.match(line)) and not match["file"].endswith(".metadata"):
            return self._hear_file(match)
        return None

    def _hear_file(self, match: re.Match[str]) -> str | None:
        size = float(match["size"]) * _UNITS.get(match["unit"], 0.0) if match["size"] else 0.0
        self._files += 1
        self._whole += size
        name, _, rest = match["file"].rpartition("/")[2].partition("-")
        self._name = f"{name} {rest.partition('-')[0]}".removesuffix(".tar.gz")
        self._size = _megabytes(size) if match["how"] == "Downloading" else ""
        if size < _LARGE:
            return None
        return f"{'downloading' if self._size else 'using cached'} {self._name}, {_megabytes(size)}"

    def line(self) -> str:
        """Where it stands now."""
        if self._done:
            return "finishing"
        if self._packages:
            done = self._num_installed() - self._before
            return f"installing {self._packages} packages: {done} done"
        if not self._files:
            return f"looking for what is needed: {self._found} packages so far"
        here = f", {_megabytes(self._here())} of {self._size}" if self._size else ""
        return f"{self._name}{here}; {self._files} files, {_megabytes(self._whole)} in all"

    def _num_installed(self) -> int:
        return len(list(self._site.glob("*.dist-info")))

    def _here(self) -> int:
        """Bytes of the file that is being downloaded."""
        sizes = {}
        for path in self._folder.rglob("*.whl"):
            with contextlib.suppress(FileNotFoundError):  # pip moves on
                stat = path.stat()
                sizes[stat.st_mtime_ns] = stat.st_size
        return sizes[max(sizes)] if sizes else 0


def pip_install(
    arguments: Sequence[str],
    *,
    tell: Callable[[str], None],
    refresh: Callable[[str], None] | None = None,
) -> None:
    """``pip install`` in the environment of this interpreter.

    Args:
        arguments: of ``pip install``.
        tell: told lines that stay.
        refresh: told twice a second where it stands; None tells that as a line that stays, now and
            then.

    Raises:
        subprocess.CalledProcessError: pip failed; its ``output`` is what it said last.
    """
    folder = Path(tempfile.mkdtemp(prefix="agentrl-pip-"))
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--progress-bar",
        "off",
        *arguments,
    ]
    progress = Progress(folder, Path(sysconfig.get_path("purelib")))
    said = deque[str](maxlen=_KEPT_LINES)
    started = time.monotonic()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_PATIENCE_S if refresh is None else _REFRESH_S):
            (refresh or tell)(f"{progress.line()} ({time.monotonic() - started:.0f} s)")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    env = {**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
    try:
        with subprocess.Popen(
            command,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                said.append(line)
                if told := progress.hear(line):
                    tell(told)
    finally:
        ended.set()
        watcher.join()
        shutil.rmtree(folder, ignore_errors=True)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, "".join(said))
    tell(f"installed in {time.monotonic() - started:.0f} s")


def _megabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def main() -> int:
    """``python pip_install.py ARGUMENTS``: in the environment of this interpreter."""
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns

    def tell(text: str) -> None:
        sys.stdout.write(f"\r\033[K  {text}\n" if terminal else f"  {text}\n")
        sys.stdout.flush()

    def refresh(text: str) -> None:
        sys.stdout.write(f"\r\033[K  {text[: width - 3]}")
        sys.stdout.flush()

    try:
        pip_install(sys.argv[1:], tell=tell, refresh=refresh if terminal else None)
    except subprocess.CalledProcessError as error:
        tell("pip failed; it said last:")
        sys.stderr.write(error.output)
        return error.returncode
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
