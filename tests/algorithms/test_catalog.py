"""Names become records; what is wrong is named with its mend."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.algorithms import ALGORITHMS, AlgorithmSpec, Needs, make_algorithm
from agentrl.errors import ConfigError
from agentrl.types import SegmentKind
from tests.algorithms.made import policy_inputs, rewards_of, token_credit
from tests.kit.waiting import DEADLINE_S

REPOSITORY = Path(__file__).parents[2]

OWN = """
from dataclasses import replace
from agentrl.algorithms import make_algorithm

def make(*, strength: float, more: int = 1):
    return replace(make_algorithm("grpo"), name=f"own-{strength}")

def wrong():
    return 3

def fails():
    raise OSError("no such table")

def unfit():
    return replace(make_algorithm("grpo"), credit=lambda rewards, state: 3, name="unfit")

number = 3
"""


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("grp", {}, "AlgorithmSettings.name='grp' is unknown; did you mean 'grpo'?"),
        (
            "grpo",
            {"clip_hi": 0.3},
            "unknown key GRPOSettings.clip_hi; did you mean clip_high?",
        ),
        ("grpo", {"clip_low": 1.0}, "GRPOSettings.clip_low must be less than 1, got 1.0"),
        ("grpo", {"clip_low": True}, "GRPOSettings.clip_low must be a number, got True"),
        (
            "grpo",
            {"clip_high": float("nan")},
            "GRPOSettings.clip_high must be a finite number",
        ),
        ("grpo", {"kl_coef": -1.0}, "GRPOSettings.kl_coef must be at least 0, got -1.0"),
        ("grpo", {"kl_cap": 0.0}, "GRPOSettings.kl_cap must be more than 0, got 0.0"),
        ("grpo", {"clip_dual": 1}, "GRPOSettings.clip_dual must be more than 1, got 1"),
        ("grpo", {"clip_dual": True}, "GRPOSettings.clip_dual must be a number, got True"),
        (
            "grpo",
            {"scale_rewards": "max"},
            "GRPOSettings.scale_rewards must be 'none' or 'std', got 'max'",
        ),
        ("grpo", {"reduction": "mean"}, "GRPOSettings.reduction must be 'token_mean', "),
        (
            "grpo",
            {"reduction": "constant"},
            "GRPOSettings.constant_tokens is needed by reduction=",
        ),
        (
            "grpo",
            {"rollout_correction": {"cap": 0.5}},
            "RolloutCorrection.cap must be at least 1, got 0.5",
        ),
        (
            "grpo",
            {"old_logprobs": "rollout", "rollout_correction": {"level": "token"}},
            "GRPOSettings.old_logprobs='rollout' needs RolloutCorrection.level='none'",
        ),
        ("sft", {"clip_low": 0.1}, "unknown key SFTSettings.clip_low"),
    ],
)
def test_a_wrong_setting_is_named(
    name: str, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        make_algorithm(name, settings)
    assert caught.value.fields[0] in message


def test_a_setting_that_does_nothing_beside_the_others_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings: dict[str, object] = {"constant_tokens": 5, "rollout_correction": {"cap": 3.0}}
    make_algorithm("grpo", settings | {"reduction": "constant"})
    make_algorithm("grpo", {"kl_estimator": "k3"})
    told = [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("agentrl")
    ]
    assert told[-1] == (
        "algorithm grpo: kl_estimator='k3' does nothing with kl_coef=0.0; leave it out, or set "
        "kl_coef to another value"
    )
    assert not any("constant_tokens" in one for one in told)
    assert {getattr(record, "event", "") for record in caplog.records} == {"setting_idle"}


def test_grpo_trains_the_policys_own_tokens_and_sft_the_targets() -> None:
    assert make_algorithm("grpo").trains == {SegmentKind.POLICY}
    assert make_algorithm("sft").trains == {SegmentKind.TARGET}


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"needs": Needs(critic=True)}, "must have value_loss where needs.critic is true"),
        (
            {"critic_warmup_steps": 5},
            "must leave critic_warmup_steps at 0, since it needs no",
        ),
    ],
)
def test_a_critic_without_its_loss_is_refused(
    declared: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(make_algorithm("grpo"), **declared)


def test_what_must_be_computed_is_declared() -> None:
    assert make_algorithm("grpo", {"kl_coef": 0.1}).needs.reference
    sft = make_algorithm("sft").for_updates(2, single=False)
    assert (sft.recomputes_old_logprobs, sft.needs.reference, sft.needs.advantages) == (
        False,
        False,
        False,
    )


@pytest.mark.parametrize(
    ("setting", "single", "found", "recomputes"),
    [
        ("auto", True, "current", False),
        (
            "auto",
            False,
            "recompute",
            True,
        ),  # after the first update the current ones have moved
        ("recompute", True, "recompute", True),
        ("rollout", True, "rollout", False),
    ],
)
def test_old_logprobs_cost_a_pass_where_updates_need_one(
    setting: str, single: bool, found: str, recomputes: bool
) -> None:
    spec = make_algorithm("grpo", {"old_logprobs": setting}).for_updates(1, single=single)
    assert (spec.old_logprobs, spec.recomputes_old_logprobs) == (found, recomputes)


def test_what_reads_old_logprobs_before_the_update_has_them_recomputed() -> None:
    spec = replace(make_algorithm("grpo"), needs=Needs(old_logprobs=True))
    assert spec.for_updates(1, single=True).recomputes_old_logprobs


@pytest.mark.parametrize("name", ALGORITHMS)
def test_settings_and_record_tell_the_same(name: str) -> None:
    record, settings = make_algorithm(name), ALGORITHMS[name].settings()
    for trait in ("learns_from", "group_size_min", "on_policy_only", "needs"):
        assert getattr(record, trait) == getattr(settings, trait), trait


@pytest.mark.parametrize("name", ["grpo", "sft"])
def test_a_record_crosses_processes(name: str) -> None:
    assert pickle.loads(pickle.dumps(make_algorithm(name))).name == name


def test_a_users_own_function_is_an_algorithm(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    made = make_algorithm("own.py:make", {"strength": 2.0}, base_dir=tmp_path)
    assert isinstance(made, AlgorithmSpec)
    assert made.name == "own-2.0"


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "own.py:make",
            {"strenght": 2.0},
            r"AlgorithmSettings\.strenght is no setting .* did you mean 'strength'\?",
        ),
        (
            "own.py:make",
            {"more": 2},
            r"AlgorithmSettings\.strength is needed by the algorithm",
        ),
        ("own.py:wrong", {}, r"must return an AlgorithmSpec, got int"),
        (
            "own.py:mak",
            {"strength": 1.0},
            r"name='own.py:mak' cannot be loaded: .*has no 'mak'",
        ),
        (
            "owm.py:make",
            {},
            r"name='owm.py:make' cannot be loaded: there is no file .*owm\.py",
        ),
        (
            "own.py:number",
            {},
            r"must be a function or class that takes the algorithm's settings",
        ),
        (
            "own.py:fails",
            {},
            r"name='own.py:fails' raised OSError: no such table \(.*own.py:\d+\)",
        ),
    ],
)
def test_what_is_wrong_with_a_users_own_is_named(
    tmp_path: Path, name: str, settings: dict[str, object], message: str
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    with pytest.raises(ConfigError, match=message):
        make_algorithm(name, settings, base_dir=tmp_path)


def test_a_function_of_a_users_own_record_names_it(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    made = make_algorithm("own.py:unfit", base_dir=tmp_path)
    with pytest.raises(
        ConfigError,
        match=r"^AlgorithmSettings\.name='own\.py:unfit': its credit must return a Credit, got int",
    ):
        made.credit(rewards_of([1.0, 0.0], [0, 0]), {})
    assert made.told("credit") == "AlgorithmSettings.name='own.py:unfit': its credit"
    assert make_algorithm("grpo").told("credit") == "algorithm 'grpo': its credit"


def test_checking_settings_imports_no_torch() -> None:
    code = (
        "import sys; from agentrl.algorithms import GRPOSettings; GRPOSettings(); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert done.stdout.strip() == "False"


def test_no_code_outside_the_package_compares_an_algorithms_name() -> None:
    compared = re.compile(
        r"""(==|!=|\bin\b|\bcase\b)\s*[(\[{]?\s*["'](grpo|sft)["']|["'](grpo|sft)["']\s*(==|!=)"""
    )
    guilty = [
        f"{path.relative_to(REPOSITORY)}:{number}"
        for path in (REPOSITORY / "agentrl").rglob("*.py")
        if "algorithms" not in path.relative_to(REPOSITORY).parts[:2]
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if compared.search(line)
    ]
    assert not guilty


PARTS = """
import numpy as np
from agentrl.algorithms import Advantages, Credit, TokenLoss

def loss(inputs):
    return TokenLoss(7.0 * inputs.logprobs)

def credit(rewards, state):
    return Credit(rewards.reward * 3, np.zeros(rewards.turn_reward.shape))

def advantages(credit):
    return Advantages(credit.mask * 5)

def too_many(inputs, more):
    return None

def bare_loss(inputs):
    return -inputs.logprobs

def bare_credit(rewards, state):
    return rewards.reward

def bare_advantages(credit):
    return None

def divides(rewards, state):
    return 1 / 0
"""


def test_a_function_of_ones_own_stands_in_for_a_built_in_one(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    settings = {
        "policy_loss": "parts.py:loss",
        "credit": "parts.py:credit",
        "advantages": "parts.py:advantages",
        "kl_coef": 0.5,
        "overlong": {"max_tokens": 1, "buffer_tokens": 1},
    }
    made = make_algorithm("grpo", settings, base_dir=tmp_path)
    # the penalty for length and the KL term are still the algorithm's
    assert made.credit(rewards_of([2.0], [0]), {}).trajectory.tolist() == [3.0]
    assert made.advantages(token_credit(torch.ones(2))).advantages.tolist() == [5.0, 5.0]
    assert made.policy_loss is not None
    logprobs = torch.tensor([-1.0])
    found = made.policy_loss(policy_inputs(logprobs, ref_logprobs=logprobs))
    assert (found.loss.tolist(), found.terms["kl"].coef) == ([-7.0], 0.5)


@pytest.mark.parametrize(
    ("part", "reference", "message"),
    [
        ("policy_loss", "parts.py:missing", "has no 'missing'"),
        ("policy_loss", "nowhere.py:loss", "nowhere.py"),
        (
            "policy_loss",
            "parts.py:too_many",
            "must take (inputs), but has the signature (inputs, more)",
        ),
        (
            "credit",
            "parts.py:loss",
            "must take (rewards, state), but has the signature (inputs)",
        ),
    ],
)
def test_a_function_that_does_not_fit_is_named(
    tmp_path: Path, part: str, reference: str, message: str
) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    with pytest.raises(ConfigError) as caught:
        make_algorithm("grpo", {part: reference}, base_dir=tmp_path)
    assert message in str(caught.value)
    assert caught.value.fields == (f"GRPOSettings.{part}",)


@pytest.mark.parametrize(
    ("part", "name", "message"),
    [
        ("policy_loss", "bare_loss", "must return a TokenLoss, got Tensor; return one"),
        ("credit", "bare_credit", "must return a Credit, got ndarray; return one"),
        (
            "advantages",
            "bare_advantages",
            "must return an Advantages, got NoneType; return one",
        ),
        (
            "credit",
            "divides",
            r"raised ZeroDivisionError: division by zero \(.*parts\.py:\d+\)",
        ),
    ],
)
def test_a_function_that_returns_or_raises_otherwise_names_its_setting(
    tmp_path: Path, part: str, name: str, message: str
) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    made = make_algorithm(
        "grpo", {part: f"parts.py:{name}", "kl_coef": 0.1}, base_dir=tmp_path
    )
    logprobs = torch.zeros(2)
    given = {
        "policy_loss": (policy_inputs(logprobs, ref_logprobs=logprobs),),
        "credit": (rewards_of([1.0, 0.0], [0, 0]), {}),
        "advantages": (token_credit(torch.ones(2)),),
    }
    told = rf"^GRPOSettings\.{part}='parts\.py:{name}' {message}"
    with pytest.raises(ConfigError, match=told):
        getattr(made, part)(*given[part])
    assert made.told(part) == f"GRPOSettings.{part}='parts.py:{name}'"
