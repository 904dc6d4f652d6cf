"""A new engine of servers touches few files outside its own folder: nothing else knows one by
name.
"""

from __future__ import annotations

import io
import token
import tokenize
from pathlib import Path

import pytest

import agentrl
from agentrl.engines.find import engines_with, server_environment, server_environments
from agentrl.engines.sglang.environment import SGLANG
from agentrl.engines.vllm.environment import VLLM
from agentrl.errors import ConfigError

PACKAGE = Path(agentrl.__file__).parent


def code(path: Path) -> str:
    """The tokens of a file without comments and docstrings."""
    words = []
    before = token.INDENT
    for found in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        starts_line = before in (token.INDENT, token.DEDENT, token.NEWLINE, token.NL)
        if found.type != token.COMMENT and not (found.type == token.STRING and starts_line):
            words.append(found.string)
        before = found.type
    return " ".join(words).lower()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_beside_the_names_of_foreign_keys_two_files_name_it(name: str) -> None:
    own = PACKAGE / "engines" / name
    naming = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if own not in path.parents and name in code(path)
    }
    assert naming - {"config/foreign_keys.py"} == {
        "engines/find.py",
        "config/train_sections.py",
    }


def test_advice_names_the_engines_that_have_the_ability() -> None:
    assert engines_with("returns_ids") == "'vllm' or 'torch' or 'sglang'"
    assert engines_with("returns_ids", "images") == "'vllm' or 'torch' or 'sglang'"
    assert engines_with("deterministic") == "'torch'"


def test_install_takes_engines_that_start_servers() -> None:
    assert server_environments() == {"sglang": SGLANG, "vllm": VLLM}
    with pytest.raises(
        ConfigError, match="needs an engine that starts servers, sglang, vllm or"
    ):
        server_environment("torch")
