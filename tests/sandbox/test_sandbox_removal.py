"""Folders whose contents are hostile are removed by descriptor: whatever a survivor swaps, nothing
outside changes.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentrl.sandbox.host import files
from agentrl.sandbox.host.run import watch

SWAPPER = """
import ctypes, os, sys
root, outside = sys.argv[1:]
exchange = ctypes.CDLL(None).renameat2
folder, link = (f"{root}/{name}".encode() for name in ("d", "l"))
print(flush=True)
while True:
    for make in (lambda: os.mkdir(folder), lambda: os.symlink(outside, link)):
        try:
            make()
        except OSError:
            pass
    for _ in range(100):
        exchange(-100, folder, -100, link, 2)  # RENAME_EXCHANGE
"""


@contextmanager
def swapping(root: Path, outside: Path) -> Iterator[None]:
    """Processes that make a folder a link to ``outside`` and back, as fast as they can."""
    argv = [sys.executable, "-I", "-S", "-c", SWAPPER, str(root), str(outside)]
    swappers = [subprocess.Popen(argv, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for swapper in swappers:
            assert swapper.stdout is not None
            swapper.stdout.readline()
        yield
    finally:
        for swapper in swappers:
            swapper.kill()
            swapper.communicate()


def test_no_mode_and_no_file_outside_changes_while_folders_are_swapped_for_links(
    tmp_path: Path,
) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    (outside / "kept" / "d").mkdir(parents=True)
    (outside / "file").write_text("x")
    for path in (outside, outside / "kept"):
        path.chmod(0o751)
    root.mkdir()
    with swapping(root, outside):
        for _ in range(1000):
            try:
                files.empty(str(root))
            except OSError:
                continue  # something was there again
    assert [stat.S_IMODE(path.stat().st_mode) for path in (outside, outside / "kept")] == [
        0o751
    ] * 2
    assert sorted(os.listdir(outside)) == ["file", "kept"]
    assert os.listdir(outside / "kept") == ["d"]


def test_what_is_closed_nested_or_a_link_is_removed(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir(mode=0o755)
    (outside / "file").write_text("x")
    root.mkdir()
    at = os.open(root, os.O_RDONLY)
    for _ in range(300):  # more than one path may hold
        os.mkdir("d" * 20, dir_fd=at)
        below = os.open("d" * 20, os.O_RDONLY, dir_fd=at)
        os.symlink(outside, "link", dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    (root / "closed").mkdir()
    (root / "closed" / "file").write_text("x")
    (root / "closed").chmod(0)
    files.remove(str(root))
    assert not root.exists()
    assert (outside / "file").read_text() == "x"


def test_a_link_in_the_place_of_the_folder_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("x")
    (tmp_path / "root").symlink_to(tmp_path / "outside")
    for remove in (files.remove, files.empty):
        with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
            remove(str(tmp_path / "root"))
    assert (tmp_path / "outside" / "file").exists()


def test_hard_links_count_once_and_closed_folders_are_counted_and_stay_closed(
    tmp_path: Path,
) -> None:
    closed = tmp_path / "root" / "closed"
    closed.mkdir(parents=True)
    (closed / "a").write_bytes(b"x" * 2**20)
    os.link(closed / "a", closed / "b")
    closed.chmod(0)
    used, entries = watch.folder_usage([str(tmp_path / "root")], 100)
    assert 2**20 <= used < 2**21
    assert entries == 2  # the folder, and the file by one of its names
    assert stat.S_IMODE(closed.stat().st_mode) == 0
    closed.chmod(0o700)


def test_links_are_not_followed_when_files_are_counted(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(b"x" * 2**20)
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    used, entries = watch.folder_usage([str(tmp_path / "root")], 100)
    assert (used < 2**20, entries) == (True, 1)


def test_folders_nested_too_deeply_cannot_be_counted(tmp_path: Path) -> None:
    path = tmp_path
    for _ in range(70):
        path = path / "d"
    path.mkdir(parents=True)
    with pytest.raises(watch.Uncountable, match="nested deeper than 64"):
        watch.folder_usage([str(tmp_path)], 1000)
