"""Building the servers' environment: a build that fails can go on, and its stand-ins say what they
are.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.engines.servers.environment import interpreter
from agentrl.engines.sglang.environment import SGLANG
from agentrl.errors import MachineError
from tests.kit.waiting import DEADLINE_S

pytestmark = pytest.mark.slow

NOTHING = replace(SGLANG.recipe("cpu"), steps=())
"""An environment without SGLang: the proof at its end fails."""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environment")
    told: list[str] = []
    for _ in range(2):  # the second call finds a build that was broken off
        with pytest.raises(
            MachineError, match="loading the server failed; call the command again to go on"
        ):
            SGLANG.build(folder, NOTHING, torch_index=None, tell=told.append)
    assert told[-1] == "loading the server, to see that it can be"
    return interpreter(folder)


def run(python: Path, code: str) -> str:
    return subprocess.run(
        [str(python), "-c", code],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    ).stdout


def test_a_missing_kernel_says_so_when_it_is_called(python: Path) -> None:
    code = "import sgl_kernel\ntry: sgl_kernel.rotate()\nexcept NotImplementedError as e: print(e)"
    assert run(python, code).startswith("sgl_kernel.rotate is a GPU kernel")


def test_kernels_have_no_private_names(python: Path) -> None:
    assert (
        run(python, "import sgl_kernel; print(hasattr(sgl_kernel, '__path_hooks__'))")
        == "False\n"
    )


def test_each_start_watches_for_torchvision_once(python: Path) -> None:
    code = "import sys; print([type(f).__name__ for f in sys.meta_path].count('DeclareOperators'))"
    assert run(python, code) == "1\n"


def test_stand_ins_of_an_earlier_version_are_renewed(python: Path) -> None:
    folder = python.parent.parent
    (module,) = folder.glob("lib/*/site-packages/sgl_kernel/__init__.py")
    module.write_text("old = True\n")
    mark = folder / "agentrl-sglang.json"
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "complete": True}))
    assert SGLANG.build(folder, NOTHING, torch_index=None, tell=print) == (python, False)
    assert (
        run(python, "import sgl_kernel; print(hasattr(sgl_kernel, 'rotate'))") == "True\n"
    )
