"""docs/logging.md has every event that a logger writes, with a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from agentrl.rollouts import KILLS_WORKER

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(
    r"^\| `(\w+)` \| (info|warning|error) \| .+ \| `([\w/]+\.py)` \|$", re.MULTILINE
)


def documented() -> dict[str, Path]:
    page = (ROOT / "docs" / "logging.md").read_text(encoding="utf-8")
    return {event: ROOT / "tests" / test for event, _, test in ROW.findall(page)}


def logged() -> set[str]:
    """The constants that stand for an event: in ``{"event": ...}``, and in calls that pass one
    on.
    """
    found: set[str] = set()
    for path in (ROOT / "agentrl").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not any(call in text for call in ("logger", "recorder.warn(", "_tell(")):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Dict):
                found |= {
                    value.value
                    for key, value in zip(node.keys, node.values, strict=True)
                    if isinstance(key, ast.Constant)
                    and key.value == "event"
                    and isinstance(value, ast.Constant)
                }
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                told = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
                if node.func.attr in ("warn", "_tell", "_say"):
                    found.update(map(str, told[:1]))
            elif isinstance(node, ast.Constant) and "engines/servers" in str(path):
                found |= set(
                    re.findall(
                        r"^server_(?:gone|lost|re[a-z]+|start[a-z_]*)$", str(node.value)
                    )
                )
    return found


def test_every_logged_event_is_in_the_table() -> None:
    assert sorted(logged() - documented().keys()) == []


def test_every_event_of_the_table_is_logged_and_tested() -> None:
    told = logged() | {KILLS_WORKER}
    assert sorted(documented().keys() - told) == []
    untested = {
        event: str(test)
        for event, test in documented().items()
        if not test.is_file() or event not in test.read_text(encoding="utf-8")
    }
    assert untested == {}
