"""How a command line ends: exit codes, one clear line, and a traceback only for what nobody
foresaw.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.cli.main import app, run
from agentrl.errors import AgentRLError, ConfigError, DataError, MachineError, StoreError
from tests.kit.waiting import DEADLINE_S

Agentrl = Callable[..., tuple[int, str, str]]


def start(*tokens: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentrl", *map(str, tokens)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env=environment,
    )


def test_a_configuration_error_ends_the_program_with_2_and_no_traceback(
    tmp_path: Path,
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "model: {path: m}\ndata: task.py:tasks\nrollout: {group_size: 1}\noptim: {rl: 1}\n"
    )
    done = start("train", config)
    assert done.returncode == 2
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0] == "error: 2 problems in the configuration:"
    assert "rollout.group_size >= 2" in lines[1]
    assert lines[2].endswith("unknown key optim.rl; did you mean optim.lr?")
    assert len(lines) == 3


WITHOUT_TORCH = """
import sys
from agentrl.cli.main import run
code = run(sys.argv[1:])
heavy = {"torch", "ray", "transformers", "agentrl.run.trainer"} & set(sys.modules)
print(*heavy, end="")
sys.exit(code)
"""


def before_anything_is_loaded(*tokens: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_TORCH, *map(str, tokens)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


CODE_EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "code" / "config.yaml"


def test_a_run_directory_that_exists_is_told_before_anything_is_loaded(
    tmp_path: Path,
) -> None:
    (tmp_path / "notes.txt").touch()
    done = before_anything_is_loaded("train", CODE_EXAMPLE, f"run.dir={tmp_path}")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "must be a new or empty folder, and already holds files, such as notes.txt"
        in done.stderr
    )


def test_more_sandboxes_than_a_host_holds_are_told_before_the_run_directory_is_made(
    agentrl: Agentrl, tmp_path: Path
) -> None:
    many = (f"run.dir={tmp_path / 'run'}", "rollout.max_running=1001")
    code, _, err = agentrl("train", CODE_EXAMPLE, *many)
    assert code == 2, err
    told = "sandbox.max_running=1001 (by default rollout.max_running) in one process is more than"
    assert told in err
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_not_there_to_be_resumed_is_told_before_anything_is_loaded(
    tmp_path: Path,
) -> None:
    done = before_anything_is_loaded(
        "train", CODE_EXAMPLE, f"run.dir={tmp_path}", "--resume"
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(
        f"error: '{tmp_path}' is not a run directory: it has no run.json"
    )


def test_help_lists_the_commands_without_loading_anything_heavy() -> None:
    script = (
        "import sys\n"
        "from agentrl.cli.main import run\n"
        "code = run(['--help'])\n"
        "heavy = {'torch', 'ray', 'transformers', 'datasets', 'pyarrow', 'numpy', 'pydantic'} & "
        "set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for command in ("train", "eval", "check", "ls", "show", "doctor"):
        assert f" {command} " in done.stdout


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("a setting"), 2),
        (DataError("a file"), 3),
        (MachineError("no sandbox"), 4),
        (StoreError("a full disk"), 1),
        (AgentRLError("anything"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_error_has_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("agentrl.sandbox.probe_backends", fail)
    assert run(["doctor"]) == code
    err = capsys.readouterr().err
    assert ("Traceback" in err) == (code == 1)
    assert err.splitlines()[-1] == ("interrupted" if code == 130 else f"error: {error}")


def test_an_error_that_is_not_ours_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("agentrl.sandbox.probe_backends", fail)
    with pytest.raises(ZeroDivisionError):
        run(["doctor"])


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["trian"], "train"),
        (["train"], "CONFIG"),
        (["train", "a.yaml", "--resum"], "--resum"),
        (["ls", "somewhere", "--status", "fine"], "fine"),
        (["ls", "somewhere", "--limit", "many"], "many"),
    ],
)
def test_a_mistake_on_the_command_line_is_2(
    agentrl: Agentrl, tokens: list[str], words: str
) -> None:
    code, _, err = agentrl(*tokens)
    assert code == 2
    assert err.startswith("error: ")
    assert words in err


@pytest.mark.parametrize("command", ["train", "eval", "check", "ls", "show", "doctor"])
def test_every_command_explains_itself(agentrl: Agentrl, command: str) -> None:
    code, out, _ = agentrl(command, "--help")
    assert code == 0
    assert f"agentrl {command}" in out


def test_the_help_of_a_command_is_the_first_line_of_its_own(agentrl: Agentrl) -> None:
    for command in ("train", "eval", "check", "ls", "show", "doctor"):
        _, out, _ = agentrl(command, "--help")
        assert " ".join(app[command].help.split()) in " ".join(out.split())


def test_dry_run_prints_every_value_with_its_origin(
    agentrl: Agentrl, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("model: {path: m}\ndata: task.py:tasks\noptim: {lr: 1e-3}\n")
    code, out, _ = agentrl("train", config, "--dry-run", "run.seed=5")
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert f"lr: 0.001 # {config}:3:9" in lines
    assert "seed: 5 # command line: run.seed=5" in lines
    assert "group_size: 8 # default" in lines


def test_dry_run_makes_no_run_directory(agentrl: Agentrl, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        f"model: {{path: m}}\ndata: task.py:tasks\nrun: {{dir: {tmp_path}/run}}\n"
    )
    agentrl("train", config, "--dry-run")
    assert not (tmp_path / "run").exists()


def test_the_end_of_the_reader_is_no_error(run_dir: Path) -> None:
    command = f"{sys.executable} -m agentrl show {run_dir} 5-0-0 --json | head -c 1; echo ${{PIPESTATUS[0]}}"  # noqa: E501
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.stdout == "{0\n"
    assert done.stderr == ""


LASTING = (
    "from agentrl.cli.terminal import LastingConsole as C; c = C(); c.print(1); c.print(2)"
)


@pytest.mark.parametrize(
    "words",
    [["-m", "agentrl", "ls", "RUN"], ["-m", "agentrl", "top", "RUN"], ["-c", LASTING]],
    ids=["ls", "top", "train"],
)
def test_a_reader_that_is_gone_ends_a_table_alone(run_dir: Path, words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, *(str(run_dir) if word == "RUN" else word for word in words)]
    try:
        done = subprocess.run(
            command,
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
