from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from agentrl.sandbox.owner_id import Owner

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def test_an_owner_is_read_back_from_its_text() -> None:
    assert Owner.parse(str(Owner.current())) == Owner.current()


@pytest.mark.parametrize("text", ["", "1-2-3", "a-2-3-b", "1-2-3-b-4", "-1-2-3"])
def test_other_text_names_no_owner(text: str) -> None:
    assert Owner.parse(text) is None


def test_this_process_lives() -> None:
    assert not Owner.current().is_dead


@needs_proc
def test_a_process_that_ended_is_dead_and_one_that_got_its_pid_later_is_another() -> None:
    code = "from agentrl.sandbox.owner_id import Owner; print(Owner.current())"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    ended = Owner.parse(said)
    assert ended is not None
    assert ended.is_dead
    assert replace(ended, pid=os.getpid()).is_dead


@needs_proc
def test_whoever_lived_before_the_boot_is_dead() -> None:
    assert replace(Owner.current(), boot="0" * 12).is_dead


@needs_proc
def test_of_another_containers_process_nothing_is_known() -> None:
    assert not replace(Owner.current(), pid=2**22 + 1, namespace=1).is_dead
