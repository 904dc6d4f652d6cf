"""Child process: limits hold, each end says what it was, and a kept child answers again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from agentrl.guards.child_process import ChildEndedError, ChildLimits, ask_child

SCRIPT = """
import os, resource
def answerer():
    def answer(data):
        return repr(eval(data)).encode()
    return answer
"""
LIMITS = ChildLimits(time_s=60.0, cpu_s=1, memory_bytes=2**28, opens_files=False)


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("child") / "script.py"
    path.write_text(SCRIPT)
    return path


def ended(script: Path, code: bytes, limits: ChildLimits = LIMITS) -> ChildEndedError:
    with pytest.raises(ChildEndedError) as error:
        ask_child(script, code, limits)
    return error.value


def test_a_child_has_no_environment_and_hard_limits(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    asked = b"[sorted(os.environ), *map(resource.getrlimit, (7, 9))]"  # NOFILE, AS
    # CPython itself sets LC_CTYPE where there is no locale
    environment, files, memory = eval(ask_child(script, asked, LIMITS))
    assert set(environment) <= {"LC_CTYPE"}
    assert (files, memory) == ((3, 3), (2**28, 2**28))


def test_each_end_says_what_it_was(script: Path) -> None:
    assert "Too many open files" in ended(script, b"open('/dev/null')").said
    assert "MemoryError" in ended(script, b"bytearray(2**29)").said
    late = ended(script, b"os.read(os.pipe()[0], 1)", ChildLimits(time_s=0.5))
    assert late.is_late
    assert late.status == -signal.SIGKILL


def test_a_kept_child_answers_again_and_is_replaced_once_it_has_ended(script: Path) -> None:
    first = ask_child(script, b"os.getpid()", LIMITS, keep=True)
    assert ask_child(script, b"os.getpid()", LIMITS, keep=True) == first
    os.kill(int(first), signal.SIGKILL)
    os.waitid(os.P_PID, int(first), os.WEXITED | os.WNOWAIT)
    assert ask_child(script, b"os.getpid()", LIMITS, keep=True) != first
