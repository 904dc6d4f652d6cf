"""Optional packages: what a message says where one is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.types import load_object
from agentrl.types.user_code.load import needed


def test_a_missing_package_is_named_with_its_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)

    with (
        pytest.raises(
            ConfigError,
            match=r"^env\.mcp needs .*; `pip install 'anyio>=4' 'httpx2>=2.0' 'mcp>=2'`$",
        ),
        needed("env.mcp", "mcp"),
    ):
        import mcp  # noqa: F401


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("gymnasium.spaces", "; `pip install 'gymnasium>=1.0'`"),
        ("math_verify", "'math-verify>=0.9'"),
        ("numpyy", ""),
    ],
)
def test_what_a_file_of_the_user_misses_is_named_too(
    module: str, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [
        name for name in sys.modules if name.partition(".")[0] == module.partition(".")[0]
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    (tmp_path / "own.py").write_text(f"import {module}\n")

    with pytest.raises(
        ConfigError, match="raised when imported: ModuleNotFoundError"
    ) as caught:
        load_object("own.py:x", tmp_path)

    assert told in str(caught.value)
    assert bool(told) == ("pip install" in str(caught.value))
