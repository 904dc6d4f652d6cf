"""What a newcomer's first seconds may not pay for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.kit.waiting import DEADLINE_S

HEAVY = ("torch", "ray", "transformers")


def loaded_after(source: str) -> set[str]:
    """The heavy packages in ``sys.modules`` of a fresh interpreter after it ran ``source``."""
    loaded = f"','.join(n for n in {HEAVY} if n in sys.modules)"
    check = f"\nimport sys; sys.stderr.write({loaded} + '\\n')"
    command = [sys.executable, "-c", source + check]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert result.returncode == 0, result.stderr
    return set(result.stderr.splitlines()[-1].split(",")) - {""}


def test_import_agentrl_is_light() -> None:
    assert loaded_after("import agentrl") == set()


# An environment's author needs no GPU stack, nor does who reads a run or checks a configuration.
LIGHT = (
    "types",
    "errors",
    "sandbox",
    "tools",
    "envs",
    "rollouts",
    "render",
    "store",
    "metrics",
    "algorithms",
    "agent_server",
    "config",
    "engines",
    "llm",
    "run",
)


def test_what_trains_nothing_is_light() -> None:
    assert loaded_after("".join(f"import agentrl.{module}\n" for module in LIGHT)) == set()


def test_every_public_name_can_be_imported() -> None:
    import agentrl

    assert [name for name in agentrl.__all__ if not hasattr(agentrl, name)] == []


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["show", "--help"]])
def test_help_is_light(arguments: list[str]) -> None:
    source = f"""
import sys
from agentrl.cli.main import main
sys.argv = ["agentrl", *{arguments}]
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
"""
    assert loaded_after(source) == set()
