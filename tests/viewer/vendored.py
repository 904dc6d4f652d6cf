"""Vendored modules: fetches the pinned JavaScript libraries of the viewer and records their hashes.

Maintainers run ``python -m tests.viewer.vendored`` after they moved a pin; it needs ``npm``. Nobody
else does: the files lie in the package. Browsers resolve no bare import without an import map, so
``from "preact"`` becomes ``from "./preact.js"``. Nothing else of a file changes.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import AgentRLError
from tests.kit.waiting import DEADLINE_S

_REPOSITORY = Path(__file__).parents[2]
STATIC_VENDOR = _REPOSITORY / "agentrl" / "viewer" / "static" / "vendor"
TESTS_VENDOR = Path(__file__).parent / "vendor"
RECORD = "VENDORED.json"
LICENSES = "LICENSES.txt"


@dataclass(frozen=True, slots=True)
class VendoredFile:
    """A file of a package on npm, and its name in the folder of vendored files."""

    package: str
    version: str
    path: str
    name: str


FILES = (
    VendoredFile("preact", "11.2.0", "dist/preact.mjs", "preact.js"),
    VendoredFile("preact", "11.2.0", "hooks/dist/hooks.mjs", "hooks.js"),
    VendoredFile("htm", "3.1.1", "dist/htm.mjs", "htm.js"),
    VendoredFile(
        "@preact/signals-core", "1.14.5", "dist/signals-core.mjs", "signals-core.js"
    ),
    VendoredFile("@preact/signals", "2.11.4", "dist/signals.mjs", "signals.js"),
    VendoredFile("uplot", "1.6.32", "dist/uPlot.esm.js", "uplot.js"),
    VendoredFile("uplot", "1.6.32", "dist/uPlot.min.css", "uplot.css"),
    VendoredFile("marked", "18.2.1", "lib/marked.esm.js", "marked.js"),
)

TEST_FILES = (VendoredFile("axe-core", "4.14.1", "axe.min.js", "axe.js"),)
"""What the tests alone need; it lies in ``tests/viewer/vendor``, outside the package."""

MODULES: Mapping[str, str] = {
    "preact": "./preact.js",
    "preact/hooks": "./hooks.js",
    "@preact/signals-core": "./signals-core.js",
}
"""Each bare import of the files, and the path that takes its place."""

_IMPORT = re.compile(
    r"""(?P<head>\bfrom\s*|\bimport\s*)(?P<quote>["'])(?P<module>[^"'\s]+)["']"""
)
_SOURCE_MAP = re.compile(r"\n?//# sourceMappingURL=\S+\s*$")


class VendorError(AgentRLError):
    """A package could not be fetched, or holds something other than its pin says."""


def rewrite_imports(source: str, name: str) -> str:
    """The module with relative imports, and without the line that names a source map.

    Raises:
        VendorError: it imports a module that is not vendored.
    """

    def replaced(match: re.Match[str]) -> str:
        module = match["module"]
        if module.startswith("."):
            return match[0]
        if module not in MODULES:
            raise VendorError(
                f"{name} imports {module!r}, which is not vendored; expected one of "
                f"{', '.join(MODULES)}: add it to FILES and MODULES of {__name__}"
            )
        return f"{match['head']}{match['quote']}{MODULES[module]}{match['quote']}"

    return _SOURCE_MAP.sub("\n", _IMPORT.sub(replaced, source))


def sha256(data: bytes) -> str:
    """The hash that the record holds, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def vendor(folder: Path, files: Sequence[VendoredFile]) -> dict[str, dict[str, str]]:
    """Fetches every file into ``folder`` and writes the record there; returns it by file name.

    Raises:
        VendorError: npm fails, or a package lacks a file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    record: dict[str, dict[str, str]] = {}
    licenses: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for file in files:
            package = _fetch(file, Path(scratch))
            original = package.read(file.path)
            data = original
            if file.path.endswith((".mjs", ".esm.js")):
                data = rewrite_imports(original.decode(), file.name).encode()
            (folder / file.name).write_bytes(data)
            metadata = json.loads(package.read("package.json"))
            repository = metadata["repository"]  # npm takes a string for short
            record[file.name] = {
                "package": file.package,
                "version": file.version,
                "path": file.path,
                "source": repository if isinstance(repository, str) else repository["url"],
                "license": metadata["license"],
                "sha256_before": sha256(original),
                "sha256_after": sha256(data),
            }
            title = f"{file.package} {file.version} ({metadata['license']})"
            licenses[title] = package.read("LICENSE").decode().strip()
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    texts = (f"{title}\n{'=' * len(title)}\n\n{text}\n" for title, text in licenses.items())
    (folder / LICENSES).write_text("\n\n".join(texts), encoding="utf-8")
    return record


@dataclass(frozen=True, slots=True)
class _Package:
    archive: Path

    def read(self, path: str) -> bytes:
        with tarfile.open(self.archive) as archive:
            try:
                member = archive.extractfile(f"package/{path}")
            except KeyError:
                member = None
            if member is None:
                raise VendorError(
                    f"{self.archive.name} has no file {path!r}: correct FILES"
                )
            return member.read()


def _fetch(file: VendoredFile, scratch: Path) -> _Package:
    """The package's archive; npm compares it with the registry's own hash."""
    pin = f"{file.package}@{file.version}"
    archive = scratch / f"{file.package.lstrip('@').replace('/', '-')}-{file.version}.tgz"
    if not archive.is_file():
        command = ["npm", "pack", "--silent", "--pack-destination", str(scratch), pin]
        try:
            subprocess.run(
                command,
                check=True,
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                cwd=scratch,
            )
        except FileNotFoundError as error:
            raise VendorError(
                "fetching needs npm, which is not installed: install it"
            ) from error
        except subprocess.CalledProcessError as error:
            raise VendorError(f"npm pack {pin} failed: {error.stderr.strip()}") from error
        except subprocess.TimeoutExpired as error:
            raise VendorError(f"npm pack {pin} took over {error.timeout:.0f} s") from error
    return _Package(archive)


def main() -> None:
    """Fetches the files of the page and those of the tests, and prints their pins."""
    for record in (vendor(STATIC_VENDOR, FILES), vendor(TESTS_VENDOR, TEST_FILES)):
        for name, entry in record.items():
            sys.stdout.write(f"{name}: {entry['package']} {entry['version']}\n")


if __name__ == "__main__":
    main()
