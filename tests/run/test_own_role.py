"""``roles``: roles of a user's beside the policy, and what is told of one that breaks the
contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agentrl.algorithms import make_algorithm
from agentrl.config.load import load_config
from agentrl.errors import AgentRLError, ConfigError, TrainingError
from agentrl.training import DistSpec, join, leave
from agentrl.training.roles.own_role import OwnRoleSpec, check_columns
from agentrl.types import Collect
from tests.run import own_roles
from tests.run.tiny_run import CONFIG, metrics, train
from tests.run.tiny_task import build_model

OWN = Path(__file__).with_name("own_roles.py")
EXAMPLE = Path(__file__).parents[2] / "examples" / "safety"
LAGRANGIAN = [
    f"stages.rl.algorithm={{name: {EXAMPLE}/lagrangian.py:ppo_lagrangian, limit: 0.5}}",
    "stages.rl.critic.stage=warmup",
    f"stages.rl.roles.cost_model={{role: '{OWN}:SurpriseSpec', pass: costs, stage: model}}",
    "stages.rl.roles.cost={role: 'agentrl.training:CriticSpec', pass: values}",
    "stages.rl.eval.sets={}",
    "stages.warmup.steps=2",
    "checkpoint.every=1",
]


def rows(run: Path) -> list[dict[str, Any]]:
    return [row for row in metrics(run) if row["stage"] == "rl" and row["step"]]


@pytest.mark.slow
def test_a_role_of_the_users_is_trained_kept_resumed_and_exported(tmp_path: Path) -> None:
    for name, steps in (("whole", 2), ("cut", 1)):
        train(tmp_path, *LAGRANGIAN, "train.offload=all", f"train.steps={steps}", name=name)
    whole = rows(tmp_path / "whole")
    assert all(row["cost/optim/grad_norm"] > 0 for row in whole)
    assert all(row["cost/explained_variance"] <= 1 for row in whole)
    # it foretells costs and not rewards
    assert all(row["cost/return"] != row["critic/return"] for row in whole)
    newest = tmp_path / "whole/checkpoints/rl/step=000002"
    assert {path.name for path in newest.iterdir() if path.is_dir()} == {
        "actor",
        "cost",
        "critic",
    }
    assert (tmp_path / "whole/models/rl/cost/config.json").is_file()
    assert not (tmp_path / "whole/models/rl/cost_model").exists()

    resumed = train(tmp_path, *LAGRANGIAN, "train.steps=2", name="cut", resume=True)
    names = (
        "policy/loss",
        "critic/loss",
        "cost/loss",
        "cost/value",
        "cost/optim/grad_norm",
    )
    assert [[row[name] for name in names] for row in rows(resumed)] == [
        [row[name] for name in names] for row in whole
    ]
    # its class belongs to the stage that it began
    other = [*LAGRANGIAN[:2], LAGRANGIAN[2].replace("Surprise", "Silent"), *LAGRANGIAN[3:]]
    with pytest.raises(
        ConfigError, match=r"roles\.cost_model\.role must stay .* once the stage"
    ):
        train(tmp_path, *other, "train.steps=3", name="cut", resume=True)


@pytest.mark.slow
def test_the_built_in_roles_do_not_notice_another_one(tmp_path: Path) -> None:
    ppo = [
        "stages.rl.algorithm.name=ppo",
        *LAGRANGIAN[1:2],
        *LAGRANGIAN[4:],
        "train.steps=2",
    ]
    train(tmp_path, *ppo, name="alone")
    train(tmp_path, *ppo, LAGRANGIAN[2], name="beside")
    assert rows(tmp_path / "alone") == rows(tmp_path / "beside")


@pytest.mark.slow
def test_two_ranks_say_what_one_says(tmp_path: Path) -> None:
    ray = ["placement.mode=ray", "placement.world_size=2", "run.deterministic=false"]
    settings = [*LAGRANGIAN, "train.steps=1", "rollout.temperature=1.0"]
    found = rows(train(tmp_path, *settings, *ray, name="two"))
    assert found[0]["cost/optim/grad_norm"] > 0
    assert np.isfinite(found[0]["cost/explained_variance"])


@pytest.fixture
def place() -> Iterator[DistSpec]:
    found = DistSpec()
    join(found)
    yield found
    leave()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    build_model(folder, 0)
    return str(folder)


METHOD = "must return a Role with a method {!r} marked with @register(Dispatch.DATA, collect=Coll"
COSTS, UPDATE = {"costs": Collect.COLUMNS}, {"update": Collect.STATS}


@pytest.mark.parametrize(
    ("kind", "settings", "methods", "told"),
    [
        (own_roles.SurpriseSpec, {"breaks": "build"}, COSTS, METHOD.format("costs")),
        (own_roles.SurpriseSpec, {}, {"values": Collect.COLUMNS}, METHOD.format("values")),
        (
            own_roles.SurpriseSpec,
            {},
            {"unmarked": Collect.COLUMNS},
            METHOD.format("unmarked"),
        ),
        (own_roles.SilentSpec, {"has_update": False}, UPDATE, METHOD.format("update")),
        (
            own_roles.BrokenSpec,
            {},
            UPDATE,
            "its build raised RuntimeError: no such card (/",
        ),
    ],
)
def test_a_role_without_what_the_driver_calls_is_refused_when_it_is_built(
    place: DistSpec, model: str, kind: Any, settings: Any, methods: Any, told: str
) -> None:
    if methods is UPDATE:
        settings = settings | {"algorithm": make_algorithm("sft")}
    spec = OwnRoleSpec("own", kind(model, **settings), methods, "roles.own.role='x'")
    with pytest.raises(ConfigError) as caught:
        spec.build(place)
    assert str(caught.value).startswith("roles.own.role='x': its build")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"costs": np.zeros(3, np.float32)}, "got 'costs' of float32 and shape (3,): "),
        ({"costs": np.zeros(4, np.int64)}, "got 'costs' of int64 and shape (4,): "),
        (
            {"costs": np.full(4, np.nan)},
            "got 'costs' of float64 and shape (4,): array([nan, ",
        ),
        ({"costs": [0.0] * 4}, "got 'costs' of list and shape (4,): "),
        ({}, "got {}; return a dict of arrays"),
        (np.zeros(4), "got array([0., 0., 0., 0.]); return a dict of arrays"),
    ],
)
def test_what_is_no_column_is_named(answer: Any, told: str) -> None:
    shard = SimpleNamespace(batch=SimpleNamespace(num_tokens=4))
    with pytest.raises(TrainingError) as caught:
        check_columns([answer], [shard], "role 'own': its pass 'costs'")  # type: ignore[list-item]
    assert str(caught.value).startswith(
        "role 'own': its pass 'costs' must return a dict of column"
    )
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("role", "told"),
    [
        (
            "SurpriseSpec', pass: costs, args: {breaks: shape}",
            "role 'own': its pass 'costs' must",
        ),
        (
            "SurpriseSpec', pass: costs, args: {breaks: exits}",
            "own.costs raised SystemExit: 0 (/",
        ),
        (
            "SurpriseSpec', pass: costs, args: {break: x}",
            "unexpected keyword argument 'break'",
        ),
        ("SilentSpec'", "role 'own': its update must return Stats, got None;"),
        (
            "NoReturnsSpec', pass: values",
            "own.update raised ValueError: batch.returns is missing",
        ),
    ],
)
def test_a_role_that_breaks_its_contract_ends_the_run_by_its_name(
    tmp_path: Path, model: str, role: str, told: str
) -> None:
    text, _, _ = CONFIG.partition("stages:")
    settings = (
        f"roles.own={{role: '{OWN}:{role}}}",
        f"model.path={model}",
        "train.steps=1",
        "algorithm={name: ppo, filter_zero_variance: false}",
        "critic.stage=model",
    )
    with pytest.raises(AgentRLError) as caught:
        train(tmp_path, *settings, text=text)
    assert told in str(caught.value)
    assert "own" in str(caught.value)


@pytest.mark.parametrize(
    ("roles", "told"),
    [
        ("own: {role: 'OWN:None_'}", "role='OWN:None_' cannot be loaded: OWN has no"),
        (
            "own: {role: 'OWN:NUMBER'}",
            "must be a subclass of agentrl.training.ModelSpec, got 7",
        ),
        ("own: {role: 'OWN:SurpriseSpec'}", "roles.own.pass is needed, since"),
        (
            "own: {role: 'OWN:SurpriseSpec', pass: costs, optim: {lr: 1.0}}",
            "stages.rl.roles.own.optim does nothing",
        ),
        (
            "critic: {role: 'OWN:SurpriseSpec', pass: costs}",
            "must be an identifier and none of",
        ),
        (
            "time: {role: 'OWN:SurpriseSpec', pass: costs}",
            "must be an identifier and none of",
        ),
        (
            "a-b: {role: 'OWN:SurpriseSpec', pass: costs}",
            "must be an identifier and none of",
        ),
        (
            "own: {role: 'OWN:SurpriseSpec', pass: costs, stage: rl}",
            "stages.rl.roles.own.stage must name what the own starts from (model, warmup), got",
        ),
        (
            "own: {role: 'OWN:SurpriseSpec', pass: costs, stage: model, path: x}",
            "roles.own.stage and roles.own.path exclude each other",
        ),
        ("own: {pass: costs}", "role is required"),
    ],
)
def test_a_role_that_cannot_be_one_is_refused_beforehand(
    tmp_path: Path, roles: str, told: str
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path, [f"stages.rl.roles={{{roles.replace('OWN', str(OWN))}}}"])
    assert told.replace("OWN", str(OWN)) in str(caught.value)


def test_a_role_in_a_stage_without_episodes_does_nothing(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    role = f"{{role: '{OWN}:SurpriseSpec', pass: costs}}"
    with pytest.raises(
        ConfigError, match=r"stages\.warmup\.roles\.own does nothing with alg"
    ):
        load_config(path, [f"stages.warmup.roles.own={role}"])
    # of one for all stages that is told nowhere
    stages = load_config(path, [f"roles.own={role}"]).resolved_stages()
    assert [list(stage.roles) for stage in stages] == [["own"], ["own"]]
