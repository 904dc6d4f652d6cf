"""Paths of the driver's machine become those of a node that lacks its folders."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agentrl.store import node_files
from agentrl.store.node_files import PROJECT, placed
from agentrl.types.section import Section


class Server(Section):
    cwd: str = "."


@dataclass(frozen=True)
class Spec:
    base_dir: str
    args: dict[str, Any] = field(default_factory=dict)
    parts: tuple[Any, ...] = ()
    text: str = "/think"
    other: object = None


def test_paths_of_the_project_lead_to_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    project, copy = "/driver/project", node_files._HERE
    monkeypatch.setenv(PROJECT, project)
    live = object()
    spec = Spec(
        project,
        {"file": f"{project}/own.py:Tool", "near": f"{project}s/x"},
        (Spec(f"{project}/a"), [f"{project}/b"], Server(cwd=f"{project}/c")),
        other=live,
    )
    found = placed(spec)
    assert found.base_dir == copy
    assert found.args == {"file": f"{copy}/own.py:Tool", "near": f"{project}s/x"}
    assert found.parts == (Spec(f"{copy}/a"), [f"{copy}/b"], Server(cwd=f"{copy}/c"))
    assert (found.text, found.other) == ("/think", live)


def test_nothing_changes_on_a_node_that_has_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = Spec(str(tmp_path), parts=(str(tmp_path / "not yet"),))
    assert placed(spec) is spec
    monkeypatch.setenv(PROJECT, str(tmp_path))
    assert placed(spec) is spec
