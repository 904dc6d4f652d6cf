"""Modules: the viewer's own files as they stand in one HTML file.

Each module becomes a ``data:`` URL, which an import map names; relative imports are rewritten to
those names. A worker has no import map: its imports are ``data:`` URLs themselves.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
from pathlib import Path

from agentrl.errors import DataError

PREFIX = "agentrl/"
"""Of every module's name in the import map."""

_IMPORT = re.compile(r"""((?:\bfrom|\bimport)\s*\(?\s*)"(\.{1,2}/[^"\n]+\.js)\"""")
_WORKER = re.compile(r"""new URL\(\s*"(\.{1,2}/[^"\n]+\.js)",\s*import\.meta\.url,?\s*\)""")


def import_map(static: Path) -> str:
    """The import map of all modules below ``static``, as JSON.

    Raises:
        DataError: a module imports what is not there.
    """
    names = sorted(
        path.relative_to(static).as_posix()
        for path in static.rglob("*.js")
        if path.name != "boot.js"
    )
    imports = {f"{PREFIX}{name}": _url(_rewritten(static, name)) for name in names}
    return json.dumps({"imports": imports})


def data_url(data: bytes, kind: str) -> str:
    """Bytes as a URL."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _url(text: str) -> str:
    return data_url(text.encode(), "text/javascript")


def _rewritten(static: Path, name: str) -> str:
    text = _read(static, name)
    text = _WORKER.sub(lambda found: f'"{_standalone(static, _target(name, found[1]), ())}"', text)
    return _IMPORT.sub(lambda found: f'{found[1]}"{PREFIX}{_target(name, found[2])}"', text)


def _standalone(static: Path, name: str, within: tuple[str, ...]) -> str:
    """The URL of a module whose imports are URLs too."""
    if name in within:
        raise DataError(f"the worker {within[0]} imports {name} in a circle")
    deeper = (*within, name)
    return _url(
        _IMPORT.sub(
            lambda found: f'{found[1]}"{_standalone(static, _target(name, found[2]), deeper)}"',
            _read(static, name),
        )
    )


def _target(name: str, relative: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), relative))


def _read(static: Path, name: str) -> str:
    path = static / name
    if name.startswith("..") or not path.is_file():
        raise DataError(f"a module of the viewer imports {name}, which is not there")
    return path.read_text(encoding="utf-8")
