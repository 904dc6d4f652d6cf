"""The settings of SGLang servers: what is passed on, and what is refused before anything is
made.
"""

from __future__ import annotations

import sys
import venv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from agentrl.config import StageConfig
from agentrl.config.load import load_config
from agentrl.engines.sglang.environment import SGLANG
from agentrl.errors import ConfigError, MachineError
from agentrl.run.build import StageRecipe
from agentrl.run.engine import engine_plan
from agentrl.run.stages import _trainer_bytes
from agentrl.weight_sync import (
    BroadcastSender,
    DiskSender,
    HttpSender,
    SharedMemorySender,
    make_sender,
)

Write = Callable[..., Path]
CPU = SGLANG.recipe("cpu")


@pytest.fixture
def stage(write: Write) -> Callable[..., StageConfig]:
    """The one stage of a configuration with ``rollout.engine: sglang`` and an interpreter that
    exists.
    """

    def make(*overrides: str, python: str = sys.executable) -> StageConfig:
        engine = ["rollout.engine=sglang"]
        if not any("sglang.urls" in one for one in overrides):
            engine.append(f"rollout.sglang.python={python}")
        return load_config(write(), [*engine, *overrides]).resolved_stages()[0]

    return make


@pytest.mark.parametrize(
    ("override", "field", "value"),
    [
        ("rollout.sglang.tp_size=2", "tp_size", 2),
        ("rollout.sglang.num_servers=3", "num_servers", 3),
        ("rollout.sglang.max_running_requests=9", "max_running_requests", 9),
        ("rollout.sglang.kv_memory_fraction=0.5", "kv_memory_fraction", 0.5),
        ("rollout.sglang.page_size=16", "page_size", 16),
        ("rollout.kv_tokens=4000", "kv_tokens", 4000),
        ("rollout.context_tokens=2000", "context_tokens", 2000),
        ("rollout.dtype=bfloat16", "dtype", "bfloat16"),
        (
            "rollout.sglang.server_args={schedule-policy: lpm}",
            "server_args",
            {"schedule-policy": "lpm"},
        ),
        (
            "rollout.sglang.urls=[http://a:1, http://b:2]",
            "urls",
            ("http://a:1", "http://b:2"),
        ),
        ("rollout.stop=[END]", "stop_strings", True),
        ("rollout.max_turns=3", "stop_strings", False),
        # an agent's requests may have stop strings of their own
        ("env.agent_command=[agent]", "stop_strings", True),
    ],
)
def test_a_setting_reaches_the_engine(
    stage: Callable[..., StageConfig], override: str, field: str, value: Any
) -> None:
    plan = engine_plan(stage(override), Path("model"))
    assert getattr(plan.spec, field, getattr(plan.place, field, None)) == value


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ([], SharedMemorySender),
        (["rollout.sglang.urls=[http://a:1]"], HttpSender),
        (["rollout.sglang.command=[srun]", "rollout.sglang.device=cpu"], HttpSender),
        (["rollout.sglang.weight_sync=shared_memory"], SharedMemorySender),
        (["rollout.sglang.weight_sync=disk"], DiskSender),
        (["rollout.sglang.weight_sync=http"], HttpSender),
        (["rollout.sglang.weight_sync=broadcast"], BroadcastSender),
    ],
)
def test_the_sender_is_the_one_named_or_that_of_the_servers(
    stage: Callable[..., StageConfig], given: list[str], kind: type
) -> None:
    plan = engine_plan(stage(*given), Path("model"))
    assert isinstance(make_sender(plan.spec.traits().transport), kind)


def test_a_missing_environment_is_named_with_the_mend(
    stage: Callable[..., StageConfig],
) -> None:
    with pytest.raises(
        MachineError, match=r"'/nowhere/python' is no file; run `agentrl install sglang`"
    ):
        engine_plan(stage(python="/nowhere/python"), Path("model"))


def test_given_servers_need_no_environment(
    stage: Callable[..., StageConfig], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    engine_plan(stage("rollout.sglang.urls=[http://a:1]"), Path("model"))


def test_a_command_of_ones_own_needs_no_environment(
    stage: Callable[..., StageConfig],
) -> None:
    own = ("rollout.sglang.command=[srun, launch]", "rollout.sglang.device=cuda")
    engine_plan(stage(*own, python="/nowhere/python"), Path("model"))


def test_an_api_key_that_is_not_set_is_named(
    stage: Callable[..., StageConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SERVER_KEY", raising=False)
    with pytest.raises(
        ConfigError,
        match="api_key_env='SERVER_KEY' must name an environment variable that is set",
    ):
        engine_plan(stage("rollout.sglang.api_key_env=SERVER_KEY"), Path("model"))


def test_an_api_key_is_not_shown(
    stage: Callable[..., StageConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_KEY", "secret")
    plan = engine_plan(stage("rollout.sglang.api_key_env=SERVER_KEY"), Path("model"))
    assert plan.place.api_key == "secret"
    assert "secret" not in repr(plan)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["rollout.sglang.urls=[http://a:1]", "placement.world_size=2"],
            "rollout.sglang.urls needs placement.world_size of at most 1",
        ),
        (
            ["rollout.sglang.urls=[a:1]"],
            "rollout.sglang.urls must be one URL a server, such as http://10.0.0.7:30000, got "
            "'a:1'; correct it",
        ),
        (
            ["rollout.sglang.urls=[http://a:1, http://a:1/]"],
            "rollout.sglang.urls must be one URL a server, such as http://10.0.0.7:30000, got "
            "'http://a:1/' twice; correct it",
        ),
        (
            ["rollout.sglang.weight_sync=broadcast", "rollout.sglang.device=cuda"],
            "goes through NCCL, which refuses two ranks on one GPU",
        ),
        (
            [
                "placement.device=cuda",
                "placement.world_size=2",
                "placement.rollout_workers=2",
                "placement.rollout=main",
                "rollout.sglang.weight_sync=broadcast",
                "rollout.sglang.device=cuda",
            ],
            "needs servers on other GPUs than the ranks that train",
        ),
        (
            ["placement.rollout_workers=1", "placement.worker_resources={GPU: 1}"],
            "must name custom resources of Ray, got 'GPU', which Ray hands out itself",
        ),
        (
            ["placement.device=cuda", "placement.world_size=3", "rollout.sglang.tp_size=2"],
            "rollout.sglang.tp_size must divide the ranks of each node (a server beside them has "
            "the GPUs of so many), got 2 for placement.world_size=3",
        ),
        (
            ["placement.device=cuda", "rollout.sglang.num_servers=2"],
            "rollout.sglang.num_servers must be 1 for servers on the GPUs of the ranks",
        ),
        (
            ["placement.device=cuda", "rollout.sleep=false"],
            "rollout.sglang.kv_memory_fraction must be set for servers that compute on the GPUs of "
            "the ranks while these train",
        ),
        (
            ["rollout.sleep=true", "rollout.schedule=async"],
            "rollout.sleep=true needs rollout.schedule='sync' and placement.rollout_workers=0",
        ),
        (
            ["rollout.sglang.weight_sync=carrier"],
            "must be 'shared_memory', 'http', 'disk' or 'broadcast'",
        ),
        (
            ["rollout.top_p=0.9"],
            "rollout.top_p=1 and rollout.top_k=0 are needed for training",
        ),
        (["rollout.min_p=0.1"], "unknown key rollout.min_p"),
        (["run.deterministic=true"], "run.deterministic needs rollout.engine='torch'"),
    ],
)
def test_what_cannot_be_is_refused(
    problems: Callable[..., list[str]], overrides: list[str], said: str
) -> None:
    assert any(said in line for line in problems("", ["rollout.engine=sglang", *overrides]))


@pytest.mark.parametrize(
    ("overrides", "sleeps"),
    [
        (["placement.device=cuda"], True),
        (["placement.device=cuda", "rollout.engine=torch"], False),
        (["placement.device=cuda", "rollout.sglang.urls=[http://a:1]"], False),
        (["placement.device=cuda", "rollout.sglang.server_args={base-gpu-id: 1}"], False),
        (["placement.device=cuda", "rollout.sglang.device=cpu"], False),
        (["placement.device=cuda", "placement.rollout_workers=1"], False),
        (
            [
                "placement.device=cuda",
                "rollout.schedule=async",
                "algorithm.rollout_correction.level=token",
                "rollout.sglang.kv_memory_fraction=0.5",
            ],
            False,
        ),
        (["placement.device=cpu"], False),
        (["placement.device=cpu", "rollout.sleep=true"], True),
    ],
)
def test_servers_on_the_gpus_of_the_ranks_sleep_by_themselves(
    write: Write, overrides: list[str], sleeps: bool
) -> None:
    own = ["rollout.engine=sglang", *overrides]
    assert load_config(write(), own).resolved_stages()[0].sleeps is sleeps


def test_what_the_trainer_may_bring_beside_a_server_is_counted(
    write: Write, tmp_path: Path
) -> None:
    # a model of 10 x 4 + 6 numbers at 12 bytes over 4 ranks, a reward model of 200 at 4 bytes
    for name, shapes in (("model", [(10, 4), (6,)]), ("reward", [(200,)])):
        tensors = {str(n): np.zeros(shape, np.float32) for n, shape in enumerate(shapes)}
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors")
    stage = load_config(write(), ["placement.world_size=4"]).resolved_stages()[0]
    recipe = StageRecipe(stage, stage.make_algorithm(), tmp_path / "model", None, 1)
    assert _trainer_bytes(recipe) == 46 * 12 // 4
    assert _trainer_bytes(replace(recipe, reward_model=tmp_path / "reward")) == 200


def test_the_default_environment_lies_in_the_users_data_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert SGLANG.folder(CPU).parent == tmp_path / "agentrl"
    assert SGLANG.python() == SGLANG.folder(CPU) / "bin" / "python"


def test_a_folder_with_other_files_is_not_built_in(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    with pytest.raises(
        ConfigError, match="must be a new or empty folder, and it holds other files"
    ):
        SGLANG.build(tmp_path, CPU, torch_index=None, tell=lambda _: None)


def test_an_environment_of_another_kind_is_not_built_over(tmp_path: Path) -> None:
    (tmp_path / "agentrl-sglang.json").write_text(
        '{"sglang": "0.1.0", "recipe": "gpu", "complete": true}'
    )
    with pytest.raises(
        ConfigError, match=r"holds an environment of SGLang 0\.1\.0 for gpu"
    ):
        SGLANG.build(tmp_path, CPU, torch_index=None, tell=lambda _: None)


def test_an_environment_that_is_there_is_not_built_again(tmp_path: Path) -> None:
    venv.create(tmp_path)
    (tmp_path / "agentrl-sglang.json").write_text(
        '{"sglang": "0.5.23", "recipe": "cpu", "complete": true}'
    )
    assert SGLANG.build(tmp_path, CPU, torch_index=None, tell=lambda _: None) == (
        tmp_path / "bin" / "python",
        False,
    )


@pytest.mark.parametrize(
    ("own", "each"),
    [
        (("placement.world_size=4",), 3),
        # Of the ranks that have a server together the first plays.
        (("placement.world_size=4", "rollout.sglang.tp_size=2"), 6),
        (("placement.world_size=3", "rollout.sglang.tp_size=2"), 4),
        (("placement.rollout_workers=2", "rollout.sglang.tp_size=2"), 6),
    ],
)
def test_the_processes_that_play_share_the_sandboxes(
    stage: Callable[..., StageConfig], own: tuple[str, ...], each: int
) -> None:
    assert stage("sandbox.max_running=12", *own).sandboxes_a_host == each


def test_two_ranks_with_one_server_may_have_one_sandbox(
    stage: Callable[..., StageConfig],
) -> None:
    own = ("sandbox.max_running=1", "placement.world_size=2")
    assert stage(*own, "rollout.sglang.tp_size=2").sandboxes_a_host == 1
    with pytest.raises(ConfigError, match=r"sandbox\.max_running must be at least 2"):
        stage(*own)
