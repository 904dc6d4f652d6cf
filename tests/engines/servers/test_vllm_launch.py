"""The command line and environment of a vLLM server, and what is refused before one starts."""

from __future__ import annotations

import base64
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from agentrl.engines import EnginePlace, SharedGpus
from agentrl.engines.vllm import VLLMEngineSpec
from agentrl.engines.vllm.launch import VLLMServers
from agentrl.errors import ConfigError, MachineError
from agentrl.weight_sync.batches import arrays_of

CONFIG = {
    "vocab_size": 9,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
}


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder ``model`` that says what the model is."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)


def servers(**settings: Any) -> VLLMServers:
    """Servers on a CPU, whose environment is not asked, since a command starts them."""
    given = {
        "model": "model",
        "folder": "run",
        "command": ("vllm", "serve"),
        "device": "cpu",
    }
    given |= settings
    names = {
        field.name for field in fields(EnginePlace)
    } - VLLMEngineSpec.model_fields.keys()
    place = EnginePlace(**{name: given.pop(name) for name in names & given.keys()})
    return VLLMServers(place, VLLMEngineSpec(**given))


def words(**settings: Any) -> list[str]:
    return servers(**settings).command(model=Path("model"), port=4)


@pytest.mark.parametrize(
    ("settings", "name", "given"),
    [
        ({"tp_size": 2}, "--tensor-parallel-size", "2"),
        ({"max_running_requests": 7}, "--max-num-seqs", "7"),
        ({"kv_memory_fraction": 0.5}, "--gpu-memory-utilization", "0.5"),
        ({"context_tokens": 100}, "--max-model-len", "100"),
        ({"dtype": "bfloat16"}, "--dtype", "bfloat16"),
        ({"server_args": {"scheduling_policy": "fcfs"}}, "--scheduling-policy", "fcfs"),
        # 1000 tokens are 8 blocks of 128, and one more; a token is 2 x 3 x 2 x 32 numbers
        ({"kv_tokens": 1000}, "--kv-cache-memory-bytes", str(9 * 128 * 384 * 4)),
        (
            {"kv_tokens": 1000, "tp_size": 2},
            "--kv-cache-memory-bytes",
            str(9 * 128 * 192 * 4),
        ),
        ({}, "--logprobs-mode", "processed_logits"),
    ],
)
def test_a_setting_becomes_an_argument(
    settings: dict[str, Any], name: str, given: str
) -> None:
    command = words(**settings)
    assert command[command.index(name) + 1] == given


def test_a_share_of_memory_is_vllms_own_count() -> None:
    assert "--kv-cache-memory-bytes" in words()
    assert "--kv-cache-memory-bytes" not in words(kv_memory_fraction=0.3)
    assert "--kv-cache-memory-bytes" not in words(device="cuda")


def test_a_server_loads_our_modules_and_no_packages_of_its_starter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    own = servers().environment()
    assert {path.name for path in Path(own["PYTHONPATH"]).glob("agentrl_*.py")} == {
        "agentrl_logprobs.py",
        "agentrl_weights.py",
    }
    assert own["VLLM_SERVER_DEV_MODE"] == "1"


def test_servers_draw_apart_and_so_does_each_start_of_one() -> None:
    kind = servers(num_servers=2)
    commands = [kind.command(model=Path("model"), port=port) for port in (4, 5, 4)]
    seeds = {command[command.index("--seed") + 1] for command in commands}
    assert len(seeds) == 3
    assert "0" not in seeds


@pytest.mark.parametrize(
    "argument", ["logprobs_mode", "--logits-processors", "model", "seed"]
)
def test_an_argument_that_agentrl_sets_itself_is_refused(argument: str) -> None:
    with pytest.raises(ConfigError, match=rf"must not have '{argument}'.*docs/vllm\.md"):
        VLLMEngineSpec(server_args={argument: "x"})


def test_heads_of_a_size_that_kills_the_server_are_refused_on_a_cpu() -> None:
    Path("model", "config.json").write_text(json.dumps(CONFIG | {"head_dim": 16}))
    said = r"vLLM on a CPU has attention for heads of 32, 64, .* model has heads of 16; use"
    with pytest.raises(ConfigError, match=said):
        servers()
    servers(device="cuda")


def test_what_a_server_cannot_do_is_refused_before_it_starts() -> None:
    with pytest.raises(
        ConfigError, match=r"routed_experts must be off for vLLM .*router_replay"
    ):
        servers(routed_experts=True)
    shared = SharedGpus(("0",), 2**30)
    with pytest.raises(
        ConfigError, match=r"kv_memory_fraction must be set .* GPUs 0 in turn"
    ):
        servers(device="cuda", shared=shared)
    servers(device="cuda", shared=shared, kv_memory_fraction=0.5)


def test_an_environment_without_the_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        MachineError, match=r"python='/nowhere' is no interpreter; run `agentrl in"
    ):
        servers(command=(), python="/nowhere")
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho no module vllm >&2; exit 1\n")
    other.chmod(0o755)
    with pytest.raises(
        MachineError, match="cannot run vLLM: no module vllm; run `agentrl install"
    ):
        servers(command=(), python=str(other))
    other.write_text("#!/bin/sh\necho 0.31.2 cpu\n")
    with pytest.raises(
        MachineError, match=r"is vLLM 0\.31\.2; agentrl needs at least 0\.32\.0"
    ):
        servers(command=(), python=str(other))


def test_tensors_in_a_call_are_a_file_of_safetensors() -> None:
    assert VLLMEngineSpec(urls=("http://x",)).traits().transport.name == "http"
    tensors = {
        "a": torch.arange(6.0).view(2, 3),
        "b": torch.tensor(3.0),
        "c": torch.ones(5).bfloat16(),
    }
    sent = servers().bucket(arrays_of([*tensors.items()]))
    found = load(base64.b64decode(*sent.texts))
    assert sent.form == "safetensors"
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], own) for name, own in tensors.items())
