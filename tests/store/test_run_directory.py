"""Making and finding a run, and the files in it."""

from __future__ import annotations

import json
import math
import os
import stat
import threading
from contextlib import closing
from pathlib import Path

import pytest

from agentrl.errors import ConfigError, SandboxError, StoreError
from agentrl.guards.secret_mask import SecretMask
from agentrl.store import (
    EventLog,
    JsonlWriter,
    RunDirectory,
    keep_lines,
    read_jsonl,
    write_json,
    write_text,
)
from agentrl.store.disk import replacing_folder


def test_a_new_run_is_found_again(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "a" / "run", {"seed": 3})

    assert RunDirectory.open(tmp_path / "a" / "run") == run
    assert run.read_record() == {"format": 4, "seed": 3}


def test_an_existing_run_is_refused_with_the_mend(run: RunDirectory) -> None:
    with pytest.raises(
        ConfigError,
        match=r"RunDirectory\.root='.*/run' must be a new .* already holds a run; .*--resume, or "
        r"name",
    ):
        RunDirectory.create(run.root)


def test_a_folder_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()

    with pytest.raises(
        ConfigError,
        match=r"already holds files, such as thesis\.tex; name another RunDirectory\.root",
    ):
        RunDirectory.create(tmp_path)


def test_a_run_that_ended_before_it_existed_leaves_room_for_itself_alone(
    tmp_path: Path,
) -> None:
    written = RunDirectory.create(tmp_path, config="seed: 3")
    written.record_path.unlink()  # as if the machine had died between the two

    with pytest.raises(
        ConfigError, match=r"already holds files, such as config\.resolved\.yaml"
    ):
        RunDirectory.create(tmp_path, config="seed: 4")
    RunDirectory.create(tmp_path, config="seed: 3")
    with pytest.raises(ConfigError, match="already holds a run"):
        RunDirectory.create(tmp_path, config="seed: 3")


def test_logs_of_engines_alone_are_no_run(tmp_path: Path) -> None:
    log = tmp_path / "engine" / "train" / "host-1" / "server-0.log"
    log.parent.mkdir(parents=True)
    log.write_text("what an evaluation before the run left")
    RunDirectory.create(tmp_path)
    assert log.is_file()


def test_empty_folders_are_no_run(tmp_path: Path) -> None:
    (tmp_path / "run" / "traj").mkdir(parents=True)

    assert RunDirectory.create(tmp_path / "run").record_path.is_file()


def test_a_folder_that_cannot_be_made_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(
        ConfigError,
        match=r"RunDirectory\.root='.*file/run' cannot be made: Not a directory; name a folder",
    ):
        RunDirectory.create(tmp_path / "file" / "run")


@pytest.mark.parametrize(
    ("folder", "state"), [("", "has no run.json"), ("missing", "does not exist")]
)
def test_what_is_no_run_is_not_opened(tmp_path: Path, folder: str, state: str) -> None:
    with pytest.raises(StoreError, match=f"is not a run directory: it {state}"):
        RunDirectory.open(tmp_path / folder)


@pytest.mark.parametrize("found", [1, 5, None])
def test_another_layout_is_refused(run: RunDirectory, found: int | None) -> None:
    write_json(run.record_path, {"format": found})

    for read in (lambda: RunDirectory.open(run.root), run.read_record):
        with pytest.raises(
            StoreError,
            match=rf"run\.json has format={found} and this agentrl reads 4; use the one that",
        ):
            read()


def test_names_that_leave_the_folder_are_refused(run: RunDirectory) -> None:
    with pytest.raises(StoreError, match=r"a writer names files.*got '\.\./x'"):
        run.shard_path(1, "../x", 1)


def test_paths(run: RunDirectory) -> None:
    def below(path: Path) -> str:
        return str(path.relative_to(run.root))

    assert (
        below(run.shard_path(123, "driver", 1))
        == "traj/sealed/step=000123/driver-0001.parquet"
    )


def test_a_blob_is_named_by_its_bytes(run: RunDirectory) -> None:
    name = run.write_blob(b"abc")

    assert name == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert run.write_blob(b"abc") == name
    assert run.read_blob(name) == b"abc"


def test_a_damaged_blob_is_refused(run: RunDirectory) -> None:
    name = run.write_blob(b"abc")
    (run.blobs_folder / name).write_bytes(b"abd")

    with pytest.raises(StoreError, match="is damaged"):
        run.read_blob(name)


def test_a_replaced_file_is_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "one")
    write_text(tmp_path / "a", "two")

    assert (tmp_path / "a").read_text() == "two"
    assert os.listdir(tmp_path) == ["a"]


def test_json_that_is_none_is_refused_and_the_old_file_stays(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": 1})

    with pytest.raises(StoreError, match=r"a\.json must hold JSON"):
        write_json(tmp_path / "a.json", {"x": math.nan})

    assert json.loads((tmp_path / "a.json").read_text()) == {"x": 1}


def test_a_torn_last_line_is_passed_over_and_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":')
    assert list(read_jsonl(path)) == [{"a": 1}]

    lines = JsonlWriter(path)
    assert lines.size == 8
    lines.append({"a": 2})
    lines.sync()
    lines.close()

    assert path.read_bytes() == b'{"a":1}\n{"a":2}\n'


def test_a_torn_line_longer_than_a_block_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a":1}\n' + b"x" * 200_000)

    JsonlWriter(path).close()

    assert path.read_bytes() == b'{"a":1}\n'


def test_a_damaged_whole_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":\n{"a":3}\n')

    with pytest.raises(StoreError, match=r"a\.jsonl:2 must be a JSON object"):
        list(read_jsonl(path))


def test_a_file_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    assert list(read_jsonl(tmp_path / "a.jsonl")) == []


def test_a_closed_file_says_so(tmp_path: Path) -> None:
    lines = JsonlWriter(tmp_path / "a.jsonl")
    lines.close()
    lines.close()

    with pytest.raises(StoreError, match=r"a\.jsonl is closed"):
        lines.append({})


def test_lines_of_several_threads_do_not_mix(tmp_path: Path) -> None:
    lines = JsonlWriter(tmp_path / "a.jsonl")

    def work(who: int) -> None:
        for number in range(200):
            lines.append({"who": who, "number": number, "text": "x" * 500})

    threads = [threading.Thread(target=work, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines.close()

    records = list(read_jsonl(tmp_path / "a.jsonl"))
    assert sorted((record["who"], record["number"]) for record in records) == [
        (who, number) for who in range(4) for number in range(200)
    ]


def test_going_back_drops_the_later_lines(tmp_path: Path) -> None:
    lines = JsonlWriter(tmp_path / "metrics.jsonl")
    for step in range(5):
        lines.append({"step": step, "loss": math.inf})
    lines.close()

    assert keep_lines(tmp_path / "metrics.jsonl", lambda record: record["step"] < 3) == 2

    assert [record["step"] for record in read_jsonl(tmp_path / "metrics.jsonl")] == [
        0,
        1,
        2,
    ]


def test_events_name_their_boundary(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "0123456789")
    events = EventLog(run)
    events.failure("episode_failed", SandboxError("no space left"), step=3)
    events.log(
        "excluded",
        "5 of 128 excluded, key 0123456789",
        boundary="sandbox",
        level="warning",
        share=0.04,
    )
    events.close()

    first, second = read_jsonl(run.events_path)
    assert (first["level"], first["boundary"], first["error"], first["step"]) == (
        "error",
        "sandbox",
        "SandboxError",
        3,
    )
    assert second["message"] == "5 of 128 excluded, key <masked:API_KEY>"


@pytest.mark.parametrize(
    ("name", "masked"),
    [
        ("OPENAI_API_KEY", True),
        ("HF_TOKEN", True),
        ("aws_secret_access_key", True),
        ("DB_PASSWORD", True),
        ("TOKENIZERS_PARALLELISM", False),
        ("MAX_TOKENS", False),
        ("MONKEY", False),
        ("PWD", False),
    ],
)
def test_which_variables_are_secret(name: str, masked: bool) -> None:
    assert (SecretMask({name: "abcdefgh"})("x abcdefgh y") != "x abcdefgh y") == masked


def test_a_short_value_is_no_secret() -> None:
    assert SecretMask({"USE_TOKEN": "true"})("it is true") == "it is true"


def test_a_secret_is_found_as_json_spells_it() -> None:
    mask = SecretMask({"A_SECRET": 'quote"and ümlaut'})

    assert mask(json.dumps('quote"and ümlaut')) == '"<masked:A_SECRET>"'
    assert mask(json.dumps('quote"and ümlaut', ensure_ascii=False)) == '"<masked:A_SECRET>"'


def test_the_environment_is_read_when_none_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-0123456789")

    assert SecretMask()("sk-0123456789") == "<masked:SOME_API_KEY>"


@pytest.mark.parametrize("before", range(980, 990))
def test_a_secret_that_a_cut_divides_is_masked_whole(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-0123456789")

    class Held:
        def __repr__(self) -> str:
            return "." * before + "sk-0123456789" + "." * 99

    with closing(EventLog(run)) as events:
        events.log("odd", "a value", boundary="run", held=Held())
    assert "sk-" not in run.events_path.read_text()


@pytest.mark.parametrize("name", ["pipe", "link"])
def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")

    with pytest.raises(
        StoreError,
        match=rf"{name} cannot be written: it is a FIFO, .*; name a file elsewhere",
    ):
        write_text(tmp_path / name, "text")
    assert stat.S_ISFIFO((tmp_path / name).stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]


def test_a_link_to_a_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("before")
    (tmp_path / "link").symlink_to("file")
    write_text(tmp_path / "link", "after")
    assert (tmp_path / "link").read_text() == "after"


def test_a_folder_takes_its_place_whole(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    for text in ("first", "second"):
        with replacing_folder(folder) as part:
            (part / text).write_text(text)
    assert [path.name for path in folder.iterdir()] == ["second"]
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_that_failed_leaves_the_one_before(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    with replacing_folder(folder) as part:
        (part / "first").touch()

    def fail() -> None:
        with replacing_folder(folder) as part:
            (part / "second").touch()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [path.name for path in folder.iterdir()] == ["first"]
    assert list(tmp_path.iterdir()) == [folder]
