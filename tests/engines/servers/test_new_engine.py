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
from agentrl.errors import ConfigError

PACKAGE = Path(agentrl.__file__).parent
OWN = PACKAGE / "engines" / "sglang"


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


def test_beside_the_names_of_foreign_keys_two_files_name_it() -> None:
    naming = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if OWN not in path.parents and "sglang" in code(path)
    }
    assert naming == {"engines/find.py", "config/train_sections.py", "config/foreign_keys.py"}


def test_advice_names_the_engines_that_have_the_ability() -> None:
    assert engines_with("returns_ids") == "'torch' or 'sglang'"
    assert engines_with("returns_ids", "images") == "'sglang'"
    assert engines_with("deterministic") == "'torch'"


def test_install_takes_engines_that_start_servers() -> None:
    assert server_environments() == {"sglang": SGLANG}
    with pytest.raises(ConfigError, match="needs an engine that starts servers, sglang or module"):
        server_environment("torch")
