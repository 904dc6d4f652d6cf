"""Stacks: a call that takes long leaves where it is; one in time leaves nothing."""

from __future__ import annotations

import ctypes
import faulthandler
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.store.logs import StackFile, stack_in
from tests.kit.waiting import DEADLINE_S, until


@pytest.fixture(autouse=True)
def _no_watch_is_left() -> Iterator[None]:
    yield
    faulthandler.cancel_dump_traceback_later()


def hang(goes_on: threading.Event) -> str:
    assert goes_on.wait(DEADLINE_S)
    return "done"


def started(stacks: StackFile, goes_on: threading.Event) -> threading.Thread:
    thread = threading.Thread(target=stacks.run, args=(hang, goes_on))
    thread.start()
    return thread


def test_a_call_in_time_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "rank-0.stacks"
    stacks = StackFile(path, after_s=DEADLINE_S)
    assert stacks.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        stacks.run(divmod, 1, 0)
    assert path.read_bytes() == b""
    assert stack_in(path) == stack_in(tmp_path / "none") == ""


def test_a_call_that_takes_long_leaves_where_it_is_until_the_next_one(
    tmp_path: Path,
) -> None:
    path, goes_on = tmp_path / "rank-0.stacks", threading.Event()
    stacks = StackFile(path, after_s=0.01)
    thread = started(stacks, goes_on)
    until(lambda: path.read_text().count("Timeout (") > 2)
    goes_on.set()
    thread.join()
    innermost = [part.split(" (")[0] for part in stack_in(path).split(" < ")]
    assert innermost[-2:] == ["hang", "run"]
    StackFile(path, after_s=DEADLINE_S).run(int)
    assert stack_in(path) == ""


def test_code_that_never_lets_python_run_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.stacks"
    # called by PyDLL, a function of C keeps the interpreter
    usleep = ctypes.PyDLL(None).usleep
    StackFile(path, after_s=0.01).run(lambda: usleep(300_000))
    # by one of the watch's looks: the last may come when the call has ended
    assert 'test_stacks.py", line' in path.read_text()
    assert " in <lambda>\n" in path.read_text()


def test_polls_beside_the_oldest_call_hide_nothing(tmp_path: Path) -> None:
    path, goes_on = tmp_path / "rollout-0.stacks", threading.Event()
    stacks = StackFile(path, after_s=0.05)

    def poll() -> None:
        until(lambda: path.read_text().count("Timeout (") > 1)

    thread = started(stacks, goes_on)
    stacks.run(poll)
    assert "hang (" in stack_in(path)
    goes_on.set()
    thread.join()


def test_a_call_is_timed_once_the_one_before_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.stacks"
    first, second = threading.Event(), threading.Event()
    stacks = StackFile(path, after_s=0.01)
    threads = [started(stacks, first), started(stacks, second)]
    until(lambda: stack_in(path))
    first.set()
    threads[0].join()
    until(lambda: stack_in(path))
    second.set()
    threads[1].join()


def test_without_a_file_nothing_is_watched() -> None:
    assert StackFile(None, after_s=0.0).run(int, "7") == 7
