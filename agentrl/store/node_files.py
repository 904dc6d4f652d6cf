"""Node files: the paths in a run's specs, as the node that hosts a part of the run has them.

The driver's paths hold on every node that shares its folders. Elsewhere the project's folder is the
copy that Ray brought, and a model is fetched from where the driver has it from.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from agentrl.store.model_folder import model_here
from agentrl.types.section import Section

PROJECT = "AGENTRL_PROJECT"
"""The variable that names the project's folder on the driver's machine, where a copy of it came."""
_HERE = os.getcwd()
"""The copy: Ray starts a process there."""


def placed(value: Any) -> Any:
    """A spec with this node's paths in place of the driver's.

    Raises:
        DataError: a model cannot be fetched.
    """
    if isinstance(value, str):
        return _placed(value)
    if type(value) in (list, tuple):
        return type(value)(map(placed, value))
    if isinstance(value, dict):
        return {key: placed(one) for key, one in value.items()}
    if isinstance(value, type):
        return value
    kind = type(value)
    names: Any = getattr(kind, "model_fields", None) or getattr(
        kind, "__dataclass_fields__", ()
    )
    before = {name: getattr(value, name) for name in names}
    after = {name: placed(one) for name, one in before.items()}
    changed = {
        n: one for n, one in after.items() if one is not before[n] and one != before[n]
    }
    if not changed:
        return value
    return (
        value.replace(**changed)
        if isinstance(value, Section)
        else replace(value, **changed)
    )


def _placed(path: str) -> str:
    if not path.startswith("/") or os.path.exists(path):
        return path
    project = os.environ.get(PROJECT)
    if project and f"{path}/".startswith(f"{project}/") and not os.path.isdir(project):
        return _HERE + path[len(project) :]
    return model_here(path)
