"""Log file: what it keeps of a record, what it hides, and what a full disk does to it."""

from __future__ import annotations

import logging
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import StoreError
from agentrl.store import logging_to, read_jsonl
from agentrl.store.jsonl import JsonlWriter
from agentrl.store.logs import LogFile

logger = logging.getLogger("agentrl.tests.log_file")


def rows(path: Path) -> list[dict[str, Any]]:
    return list(read_jsonl(path))


def test_a_record_keeps_its_message_level_logger_and_fields(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "driver.jsonl"
    with logging_to(path):
        logger.warning(
            "server %d is started again",
            3,
            extra={"event": "server_restarted", "restart": 1},
        )
    (row,) = rows(path)
    assert row["message"] == "server 3 is started again"
    assert (row["level"], row["logger"], row["pid"]) == (
        "warning",
        logger.name,
        os.getpid(),
    )
    assert (row["event"], row["restart"]) == ("server_restarted", 1)


def test_a_librarys_own_fields_are_left_out(tmp_path: Path) -> None:
    with logging_to(tmp_path / "log.jsonl"):
        # Ray's own record factory may have set its field already, so a name of nobody's
        logger.info("a fact", extra={"_a_librarys_own": 1})
    (row,) = rows(tmp_path / "log.jsonl")
    assert "_a_librarys_own" not in row


def test_info_is_kept_and_debug_is_not(tmp_path: Path) -> None:
    with logging_to(tmp_path / "log.jsonl"):
        logger.debug("a detail")
        logger.info("a fact")
    assert [row["message"] for row in rows(tmp_path / "log.jsonl")] == ["a fact"]


def test_an_exception_keeps_its_traceback(tmp_path: Path) -> None:
    with logging_to(tmp_path / "log.jsonl"):
        try:
            raise KeyError("the map")
        except KeyError:
            logger.exception("it was not found")
    (row,) = rows(tmp_path / "log.jsonl")
    assert "KeyError: 'the map'" in row["traceback"]
    assert "test_log_file.py" in row["traceback"]


def test_secrets_of_the_environment_are_masked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "sk-123456789")
    handler = LogFile(tmp_path / "log.jsonl")
    handler.handle(
        logging.makeLogRecord(
            {
                "name": "agentrl",
                "msg": "asked with sk-123456789",
                "url": "http://a/?k=sk-123456789",
            }
        )
    )
    handler.close()
    assert "sk-123456789" not in (tmp_path / "log.jsonl").read_text()


def test_the_level_and_the_handlers_are_as_before_afterwards(tmp_path: Path) -> None:
    package = logging.getLogger("agentrl")
    before = (package.level, list(package.handlers))
    with logging_to(tmp_path / "log.jsonl"):
        assert package.level == logging.INFO
    assert (package.level, list(package.handlers)) == before


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_a_disk_that_refuses_is_told_once_and_ends_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with logging_to(Path("/dev/full")):
        logger.info("one")
        logger.info("two")
    told = capsys.readouterr().err
    assert told.count("the log is incomplete from here on") == 1
    assert "/dev/full" in told


def test_a_line_that_was_torn_leaves_the_next_one_whole(tmp_path: Path) -> None:
    lines = JsonlWriter(tmp_path / "events.jsonl")
    lines.append({"number": 1})
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        # the kernel writes a part of a line that would make the file larger
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, old[1]))
        with pytest.raises(StoreError, match="File too large"):
            lines.append({"text": "x" * 1000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    lines.append({"number": 2})
    lines.close()
    assert rows(tmp_path / "events.jsonl") == [{"number": 1}, {"number": 2}]
