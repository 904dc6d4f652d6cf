"""The line that an error is blamed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentrl.guards.parsing import parse_json
from agentrl.types import raised_at

INSTALLED = "/env/site-packages/package/run.py"


@pytest.mark.parametrize(("called", "place"), [(int, f"{INSTALLED}:2"), (parse_json, "")])
def test_an_installed_package_is_blamed_for_what_it_raised_itself(
    called: Callable[[Any], Any], place: str
) -> None:
    space: dict[str, Any] = {}
    exec(compile("def run(called):\n    called(None)\n", INSTALLED, "exec"), space)
    with pytest.raises(TypeError) as caught:
        space["run"](called)
    # This file's own frame is a user's.
    assert raised_at(caught.value.with_traceback(caught.tb.tb_next)) == place
