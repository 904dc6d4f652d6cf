"""docs/structure.md has a line for each module, and no line for one that is gone."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r"^\| `(agentrl/[^`]*)` \| (.+) \|$", re.MULTILINE)


def described() -> dict[str, str]:
    return dict(LINE.findall((ROOT / "docs" / "structure.md").read_text(encoding="utf-8")))


def expected() -> set[str]:
    """Each module but the ``__init__`` of a package, which stands under the package's folder."""
    files = [path for path in (ROOT / "agentrl").rglob("*.py") if path.name != "__init__.py"]
    packages = [path.parent for path in (ROOT / "agentrl").rglob("__init__.py")]
    return {str(path.relative_to(ROOT)) for path in files} | {f"{path.relative_to(ROOT)}/" for path in packages}


def test_each_module_has_a_line() -> None:
    assert sorted(expected() - described().keys()) == []


def test_each_line_has_a_module() -> None:
    assert sorted(described().keys() - expected()) == []


def test_a_line_is_one_short_sentence() -> None:
    assert [name for name, text in described().items() if len(text) > 120] == []
