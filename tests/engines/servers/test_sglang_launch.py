"""The command line and environment of a server, and the guard that ends it with its owner."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agentrl.engines import SharedGpus
from agentrl.engines.servers.client import WeightLabels
from agentrl.engines.servers.process import ServerProcess
from agentrl.engines.servers.server import HOST, Server, reserved_port
from agentrl.engines.sglang import SGLangEngineSpec
from agentrl.engines.sglang.launch import SGLangServers, kv_memory_fraction
from agentrl.engines.sglang.server_side import forking_launch
from agentrl.errors import ConfigError, MachineError
from tests.kit.server_programs import split
from tests.kit.waiting import until


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder ``model`` that says what the model is."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(
        '{"vocab_size": 9, "num_attention_heads": 12}'
    )
    monkeypatch.chdir(tmp_path)


def servers(**settings: Any) -> SGLangServers:
    """Servers on a CPU, whose environment is not asked, since a command starts them."""
    usual = {"model": "model", "folder": "run", "command": ("python",), "device": "cpu"}
    own, place = split(SGLangEngineSpec, usual | settings)
    return SGLangServers(place, SGLangEngineSpec(**own))


def words(**settings: Any) -> list[str]:
    return servers(**settings).command(model=Path("model"), port=4)


def value(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


@pytest.mark.parametrize(
    ("settings", "name", "given"),
    [
        ({"tp_size": 2}, "--tp-size", "2"),
        ({"max_running_requests": 7}, "--max-running-requests", "7"),
        ({"kv_memory_fraction": 0.5}, "--mem-fraction-static", "0.5"),
        ({"page_size": 16}, "--page-size", "16"),
        ({"kv_tokens": 1000}, "--max-total-tokens", "1008"),
        ({"context_tokens": 100}, "--context-length", "108"),
        ({"dtype": "bfloat16"}, "--dtype", "bfloat16"),
        ({"server_args": {"schedule_policy": "lpm"}}, "--schedule-policy", "lpm"),
        ({"server_args": {"attention-backend": "triton"}}, "--attention-backend", "triton"),
    ],
)
def test_a_setting_becomes_an_argument(
    settings: dict[str, Any], name: str, given: str
) -> None:
    assert value(words(**settings), name) == given


def test_true_is_a_flag_and_false_is_left_out() -> None:
    command = words(server_args={"enable-memory-saver": True, "disable-cuda-graph": False})
    assert "--enable-memory-saver" in command
    assert "--disable-cuda-graph" not in command


def test_an_idle_server_takes_no_core_unless_it_is_told_to() -> None:
    assert "--sleep-on-idle" in words()
    assert "--sleep-on-idle" not in words(server_args={"sleep-on-idle": False})


def test_the_tokenizer_is_loaded_for_stop_strings_alone() -> None:
    assert "--skip-tokenizer-init" in words()
    assert "--skip-tokenizer-init" not in words(stop_strings=True)


def test_a_gpu_server_sizes_its_own_cache() -> None:
    command = words(device="cuda", dtype="bfloat16")
    assert not {"--max-total-tokens", "--mem-fraction-static", "--device"} & set(command)


GIB = 2**30


@pytest.mark.parametrize(
    ("free", "trainer", "share"),
    [
        # 139 - 7 - (8192 x 1.5 + 512 x 2) / 1024 = 139 - 7 - 13 = 119 of 139
        (139, 7, 0.856),
        # 79 - 12 - 13 = 54 of 79
        (79, 12, 0.683),
        # 23 - 2 - (4096 x 1.5 + 160 x 2) / 1024 = 23 - 2 - 6.3125 = 14.6875 of 23
        (23, 2, 0.638),
    ],
)
def test_the_share_of_a_shared_gpu_is_counted(
    free: int, trainer: int, share: float
) -> None:
    shared = SharedGpus(("0",), free * GIB, trainer * GIB)
    assert kv_memory_fraction(shared) == share
    command = words(device="cuda", dtype="bfloat16", shared=shared)
    assert value(command, "--mem-fraction-static") == str(share)
    assert "--enable-memory-saver" in command
    own = words(device="cuda", dtype="bfloat16", shared=shared, kv_memory_fraction=0.25)
    assert value(own, "--mem-fraction-static") == "0.25"


def test_a_gpu_without_room_for_a_server_is_told() -> None:
    said = r"GPU 0, 1 has 16\.0 GiB .*, of which .* need 15\.0 GiB .* own work 3\.0 GiB, .*nothing"
    with pytest.raises(MachineError, match=said):
        kv_memory_fraction(SharedGpus(("0", "1"), 16 * GIB, 15 * GIB))


def test_a_server_sees_the_gpus_of_its_ranks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    shared = SharedGpus(("4", "6"), 80 * GIB)
    for device, seen in (("cuda", "4,6"), ("cpu", "4")):
        own = servers(device=device, dtype="bfloat16", shared=shared)
        assert own.environment()["CUDA_VISIBLE_DEVICES"] == seen


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_server_that_does_not_sleep_saves_no_memory(device: str) -> None:
    shared = SharedGpus(("0",), 0 if device == "cuda" else 80 * GIB)
    assert "--enable-memory-saver" not in words(
        device=device, dtype="bfloat16", shared=shared
    )


def test_a_command_of_ones_own_gets_the_same_arguments() -> None:
    own, usual = words(command=("srun", "launch")), words()
    assert own[:2] == ["srun", "launch"]
    # each start of a server draws with a seed of its own
    assert value(own, "--random-seed") != value(usual, "--random-seed")
    for command in own, usual:
        command.remove(value(command, "--random-seed"))
    assert own[2:] == usual[1:]


def test_a_command_of_ones_own_needs_a_device() -> None:
    with pytest.raises(
        ConfigError,
        match=r"SGLangEngineSpec\.command=\['launch'\] needs device, 'cpu' or 'cuda'",
    ):
        SGLangEngineSpec(command=("launch",))


@pytest.mark.parametrize("argument", ["model_path", "random-seed"])
def test_an_argument_that_agentrl_sets_itself_is_refused(argument: str) -> None:
    with pytest.raises(ConfigError, match=rf"must not have '{argument}'"):
        SGLangEngineSpec(server_args={argument: "other"})


def test_a_server_does_not_see_the_packages_of_its_starter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    assert "PYTHONPATH" not in servers().environment()


def test_settings_of_the_environment_go_before_all() -> None:
    assert servers(env={"HF_HUB_OFFLINE": "0"}).environment()["HF_HUB_OFFLINE"] == "0"


def test_a_server_on_a_cpu_has_minutes_to_answer_behind_what_it_computes() -> None:
    for device, wait_s in (("cpu", 300), ("cuda", 30)):
        kind = servers(device=device, dtype="bfloat16")
        assert kind.health_s == wait_s
        # by default the server itself gives up after 20 s
        own_s = int(kind.environment().get("SGLANG_HEALTH_CHECK_TIMEOUT", 20))
        assert own_s == wait_s - 10


def test_each_rank_on_a_cpu_has_a_core_of_those_that_may_be_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    assert servers(tp_size=3).environment()["SGLANG_CPU_OMP_THREADS_BIND"] == "3|5|3"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"tp_size": 3},
            r"SGLangEngineSpec\.tp_size must divide the model's num_attention_heads=4 .*, got 3",
        ),
        (
            {"context_tokens": 600},
            r"EnginePlace\.context_tokens must be at most .*max_position_embeddings=512, got 600",
        ),
        (
            {"device": "cuda", "dtype": "float32"},
            r"EnginePlace\.dtype must be bfloat16 for SGLang servers on a GPU .*got 'float32'; set",
        ),
    ],
)
def test_what_the_model_does_not_allow_is_refused_before_a_server_is_started(
    tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    config = {"vocab_size": 9, "num_attention_heads": 4, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=said):
        servers(model=str(tmp_path), **{"context_tokens": 100, **settings})


def test_a_mixture_whose_output_layer_sglang_does_not_tie_is_refused(
    tmp_path: Path,
) -> None:
    config = {"vocab_size": 9, "num_attention_heads": 4, "model_type": "qwen3_moe"}
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"tie_word_embeddings": True})
    )
    with pytest.raises(ConfigError, match="does not tie the output layer of a mixture"):
        servers(model=str(tmp_path))


def test_an_interpreter_that_is_not_there_is_named_with_the_mend() -> None:
    with pytest.raises(
        MachineError, match="'nowhere' is no interpreter; run `agentrl install sglang`"
    ):
        servers(command=(), python="nowhere")


@pytest.mark.slow
def test_an_interpreter_without_sglang_is_named_with_the_mend() -> None:
    with pytest.raises(
        MachineError, match=r"cannot run SGLang: .*run `agentrl install sglang`"
    ):
        servers(command=(), python=sys.executable)


@pytest.mark.parametrize(
    ("built_for", "found", "device"),
    [(None, True, "cpu"), ("13.0", True, "cuda"), ("13.0", False, "cpu")],
)
def test_the_device_is_what_the_environment_is_built_for_and_finds(
    built_for: str | None, found: bool, device: str, tmp_path: Path
) -> None:
    """A package stands for torch: where it was built for no GPU it is not imported."""
    packages = tmp_path / "packages"
    for name, version in (("torch", "2.13.0"), ("sglang", "0.5.23")):
        folder = packages / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
    (packages / "torch").mkdir()
    (packages / "torch" / "version.py").write_text(f"cuda = {built_for!r}\n")
    (packages / "torch" / "__init__.py").write_text(
        f"class cuda:\n    is_available = lambda: {found}\nassert {built_for!r}\n"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    assert (
        servers(command=(), python=str(python), device=None, dtype="bfloat16").device
        == device
    )


@pytest.mark.parametrize(("threads", "method"), [(1, "fork"), (2, "spawn")])
def test_processes_of_a_server_without_a_gpu_are_forked_by_what_has_one_thread(
    threads: int, method: str, tmp_path: Path
) -> None:
    """A program stands for SGLang: it asks for spawned processes, as SGLang does."""
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "launch_server.py").write_text(
        f"""import multiprocessing, sys, threading
stop = threading.Event()
for _ in range({threads} - 1):
    threading.Thread(target=stop.wait).start()
multiprocessing.set_start_method("spawn", force=True)
print(multiprocessing.get_start_method(), *sys.argv[1:])
stop.set()
"""
    )
    said = subprocess.run(
        [sys.executable, "-P", forking_launch.__file__, "--port", "4"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split() == [method, "--port", "4"]


def test_a_process_that_ends_has_its_last_words_in_the_log(tmp_path: Path) -> None:
    process = ServerProcess(
        [sys.executable, "-c", "print('last words'); exit(3)"], os.environ, tmp_path / "log"
    )
    until(lambda: process.exit_code is not None)
    assert (process.exit_code, process.log_tail()) == (3, "last words")
    process.end()


def test_a_model_that_sees_is_served_with_its_tokenizer_and_pixels_of_pil(
    tmp_path: Path,
) -> None:
    assert "--skip-tokenizer-init" in words()
    (tmp_path / "model" / "config.json").write_text(
        '{"vocab_size": 9, "num_attention_heads": 4, "vision_config": {}}'
    )
    assert "--skip-tokenizer-init" not in words()
    assert "--disable-fast-image-processor" in words()


@pytest.mark.parametrize(
    ("said", "ran_out"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory.", True),
        # a server says much after what ended it
        ("torch.OutOfMemoryError: CUDA out of memory.\n" + "  File\n" * 40, True),
        ("no such option", False),
    ],
)
async def test_a_server_that_ran_out_of_memory_names_the_settings(
    said: str, ran_out: bool
) -> None:
    kind = servers(command=(sys.executable, "-c", f"raise SystemExit({said!r})"))
    server = Server(0, kind, WeightLabels("ours"))
    with pytest.raises(MachineError) as caught:
        await server.start(Path("model"), "ours.0")
    told = str(caught.value)
    await server.end()
    assert said.splitlines()[-1] in told
    remedy = (
        "ended while it started out of memory (lower rollout.sglang.kv_memory_fraction, or raise "
        "rollout.sglang.tp_size); the end of its log"
    )
    assert (remedy in told) == ran_out


_IP_LOCAL_PORT_RANGE = 51
"""Of Linux' ``in.h``, from 6.3 on; Python has no name for it."""


def test_the_port_of_a_server_that_starts_is_given_to_nobody_else() -> None:
    with reserved_port() as port, socket.socket() as asks, socket.socket() as calls:
        for one in asks, calls:
            # no other port is left to the system; an older kernel may take any
            with suppress(OSError):
                own = (port | port << 16).to_bytes(4, sys.byteorder)
                one.setsockopt(socket.IPPROTO_IP, _IP_LOCAL_PORT_RANGE, own)
        asks.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            asks.bind((HOST, 0))
        assert asks.getsockname()[1] != port
        # the server that it is for may listen there
        with socket.create_server((HOST, port)) as server:
            with suppress(OSError):
                calls.connect(server.getsockname())
            assert calls.getsockname()[1] != port
