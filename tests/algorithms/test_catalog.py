"""Names become records; what is wrong is named with its mend."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.algorithms import AlgorithmSpec, check_settings, make_algorithm
from agentrl.errors import ConfigError
from agentrl.types import SegmentKind

REPOSITORY = Path(__file__).parents[2]

OWN = """
from dataclasses import replace
from agentrl.algorithms import make_algorithm

def make(*, strength: float, more: int = 1):
    return replace(make_algorithm("grpo"), name=f"own-{strength}")

def wrong():
    return 3
"""


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("grp", {}, r"algorithm\.name='grp' is unknown; did you mean 'grpo'\?"),
        (
            "grpo",
            {"clip_hi": 0.3},
            r"algorithm\.clip_hi is no setting .* did you mean 'clip_high'\?",
        ),
        ("grpo", {"clip_low": 1.0}, r"algorithm\.clip_low must be in \[0, 1\), got 1\.0"),
        ("grpo", {"clip_low": True}, r"algorithm\.clip_low must be in \[0, 1\), got True"),
        (
            "grpo",
            {"clip_high": float("nan")},
            r"algorithm\.clip_high must be finite and at least 0, got nan",
        ),
        ("grpo", {"kl_coef": -1.0}, r"algorithm\.kl_coef must be finite and at least 0"),
        (
            "grpo",
            {"kl_cap": 0.0},
            r"algorithm\.kl_cap must be finite and above 0, or null, got 0\.0",
        ),
        (
            "grpo",
            {"clip_dual": 1},
            r"algorithm\.clip_dual must be finite and above 1, or null, got 1",
        ),
        (
            "grpo",
            {"clip_dual": True},
            r"algorithm\.clip_dual must be finite and above 1, or null, got True",
        ),
        ("grpo", {"scale": "max"}, r"algorithm\.scale must be one of none, std, got 'max'"),
        ("grpo", {"reduction": "mean"}, r"algorithm\.reduction must be one of token_mean"),
        ("grpo", {"reduction": "constant"}, r"needs algorithm\.constant_tokens"),
        (
            "grpo",
            {"correction_cap": 0.5},
            r"algorithm\.correction_cap must be finite and at least 1",
        ),
        (
            "grpo",
            {"old_logprobs": "rollout", "correction": "token"},
            r"needs algorithm\.correction='none'",
        ),
        ("sft", {"clip_low": 0.1}, r"algorithm\.clip_low is no setting of algorithm 'sft'"),
    ],
)
def test_a_wrong_setting_is_named(name: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_settings(name, settings)
    with pytest.raises(ConfigError, match=message):
        make_algorithm(name, settings)


def test_grpo_trains_the_policys_own_tokens_and_sft_the_targets() -> None:
    assert make_algorithm("grpo").trains == {SegmentKind.POLICY}
    assert make_algorithm("sft").trains == {SegmentKind.TARGET}


def test_what_must_be_computed_is_declared() -> None:
    assert make_algorithm("grpo").needs.old_logprobs
    assert not make_algorithm("grpo", {"old_logprobs": "rollout"}).needs.old_logprobs
    assert make_algorithm("grpo", {"kl_coef": 0.1}).needs.reference
    needs = make_algorithm("sft").needs
    assert (needs.old_logprobs, needs.reference, needs.advantages) == (False, False, False)


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
            r"algorithm\.strenght is no setting .* did you mean 'strength'\?",
        ),
        ("own.py:make", {"more": 2}, r"needs algorithm\.strength"),
        ("own.py:wrong", {}, r"must return an AlgorithmSpec, got int"),
        ("own.py:mak", {"strength": 1.0}, r"has no 'mak'"),
    ],
)
def test_what_is_wrong_with_a_users_own_is_named(
    tmp_path: Path, name: str, settings: dict[str, object], message: str
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    with pytest.raises(ConfigError, match=message):
        make_algorithm(name, settings, base_dir=tmp_path)


def test_checking_settings_imports_no_torch() -> None:
    code = (
        "import sys; from agentrl.algorithms import check_settings; check_settings('grpo', {}); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
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
