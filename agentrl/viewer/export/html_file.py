"""HTML file: the viewer and some trajectories of a run in one file, which opens without a server.

Nothing is loaded from elsewhere: the Content-Security-Policy of the file names the hash of each
inline script and style, and allows modules from within the file (``data:``) alone.

Each module becomes a ``data:`` URL, which an import map names; relative imports are rewritten to
those names. A worker has no import map: its imports are ``data:`` URLs themselves.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import ConfigError, DataError
from agentrl.store import write_bytes
from agentrl.viewer.app import STATIC
from agentrl.viewer.export.answers import ExportedAnswers, Redaction
from agentrl.viewer.runs.open_run import OpenRun
from agentrl.viewer.wire import data_url

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


def _url(text: str) -> str:
    return data_url(text.encode(), "text/javascript")


def _rewritten(static: Path, name: str) -> str:
    text = _read(static, name)
    text = _WORKER.sub(
        lambda found: f'"{_standalone(static, _target(name, found[1]), ())}"', text
    )
    return _IMPORT.sub(lambda found: f'{found[1]}"{PREFIX}{_target(name, found[2])}"', text)


def _standalone(static: Path, name: str, within: tuple[str, ...]) -> str:
    """The URL of a module whose imports are URLs too."""
    if name in within:
        raise DataError(f"the worker {within[0]} imports {name} in a circle")
    deeper = (*within, name)
    return _url(
        _IMPORT.sub(
            lambda found: (
                f'{found[1]}"{_standalone(static, _target(name, found[2]), deeper)}"'
            ),
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


MOST = 200
"""Trajectories of one file."""

_STYLES = ("vendor/uplot.css", "app.css", "trajectory/trajectory.css")
_POLICY = (
    "default-src 'none'; script-src {scripts} data:; style-src {styles}; img-src data: blob:; "
    "worker-src data:; base-uri 'none'; form-action 'none'"
)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
{styles}
<script type="application/json" id="agentrl-export">{data}</script>
{scripts}
</head>
<body>
<div id="app"></div>
<noscript>The viewer is a program in JavaScript: allow it for this page.</noscript>
</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export holds.

    Args:
        trajectories: in the file.
        found: that fit the query.
        size: of the file in bytes.
        damage: what of the run could not be read, and is not in it.
    """

    trajectories: int
    found: int
    size: int
    damage: tuple[str, ...]


def export_html(
    run: OpenRun,
    out: Path,
    *,
    query: str = "",
    limit: int = MOST,
    redact: Iterable[str] = (),
) -> Exported:
    """Writes the file.

    Args:
        run: whose trajectories.
        out: the file; one that is there is replaced.
        query: which trajectories, as ``agentrl view`` takes it.
        limit: at most so many of them, the latest steps first.
        redact: regular expressions of what must not be in the file.

    Raises:
        ConfigError: ``limit`` or a pattern is out of range, or the query is none.
        DataError: nothing fits the query, or ids cannot be redacted.
        StoreError: the run cannot be read, or the file not written.
    """
    if not 1 <= limit <= MOST:
        raise ConfigError(
            f"--limit must be from 1 to {MOST}, which a browser opens, got {limit}"
        )
    redaction = Redaction(redact)
    page = run.index().page(query, "-step", limit=limit)
    if not page.rows:
        raise DataError(
            f"the run {run.name} has no trajectory of the query {query!r} to export"
        )
    answers = ExportedAnswers(run, page.rows, redaction)
    answers.collect()
    damage = tuple(dict.fromkeys([*run.damage(), *answers.damage]))
    if not answers.rows:
        raise DataError(
            f"no trajectory of {run.name} to export can be read: {'; '.join(damage)}"
        )
    icon = (STATIC / "icon.svg").read_bytes()
    kept = {
        "answers": answers.packed,
        "images": answers.images | {"icon.svg": data_url(icon, "image/svg+xml")},
        "start": f"#/run/{run.key}/trajectories",
    }
    text = _page(redaction.text(run.name), json.dumps(kept))
    data = text.encode()
    write_bytes(out, data)
    return Exported(len(answers.rows), page.total, len(data), damage)


def _page(name: str, kept: str) -> str:
    boot = (STATIC / "boot.js").read_text(encoding="utf-8")
    stub = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
    scripts = [
        ("", boot),
        ("", stub),
        (' type="importmap"', import_map(STATIC)),
        (' type="module"', f'import "{PREFIX}app.js";'),
    ]
    styles = [(STATIC / style).read_text(encoding="utf-8") for style in _STYLES]
    policy = _POLICY.format(
        scripts=" ".join(_hash(text) for _, text in scripts),
        styles=" ".join(map(_hash, styles)),
    )
    return _PAGE.format(
        policy=policy,
        title=html.escape(f"{name} (exported)"),
        styles="\n".join(f"<style>{text}</style>" for text in styles),
        # Whatever a trajectory says, it cannot end the element that holds it.
        data=kept.replace("<", "\\u003c"),
        scripts="\n".join(f"<script{kind}>{text}</script>" for kind, text in scripts),
    )


def _hash(text: str) -> str:
    """Of an inline element, as a policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
