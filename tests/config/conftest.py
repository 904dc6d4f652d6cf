"""A configuration file of a test's own, and the errors that loading it gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from agentrl.config.load import load_config
from agentrl.errors import ConfigError

MINIMAL = """\
model: {path: some/model}
data: {train: task.py:tasks}
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes ``config.yaml``: the minimal sections, and the text given below them."""

    def write_config(text: str = "", *, head: str = MINIMAL) -> Path:
        path = tmp_path / "config.yaml"
        path.write_text(head + text)
        return path

    return write_config


@pytest.fixture
def problems(write: Callable[..., Path], tmp_path: Path) -> Callable[..., list[str]]:
    """The lines of the ConfigError that a configuration raises, the folder's name cut off."""

    def problems_of(
        text: str = "", overrides: Sequence[str] = (), *, head: str = MINIMAL
    ) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load_config(write(text, head=head), overrides)
        lines = [
            line.strip()
            for line in str(caught.value).replace(f"{tmp_path}/", "").splitlines()
        ]
        return lines[1:] if "problems in the configuration" in lines[0] else lines

    return problems_of
