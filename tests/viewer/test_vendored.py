"""The vendored libraries: what lies in the package is what its record says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.viewer.vendored import (
    FILES,
    MODULES,
    RECORD,
    STATIC_VENDOR,
    TEST_FILES,
    TESTS_VENDOR,
    VendoredFile,
    VendorError,
    rewrite_imports,
    sha256,
)


@pytest.mark.parametrize(
    ("folder", "files"),
    [(STATIC_VENDOR, FILES), (TESTS_VENDOR, TEST_FILES)],
    ids=["page", "tests"],
)
def test_each_file_is_the_one_recorded(
    folder: Path, files: tuple[VendoredFile, ...]
) -> None:
    record = json.loads((folder / RECORD).read_text())

    names = {path.name for path in folder.iterdir()}
    assert names == {*record, RECORD, "LICENSES.txt"}
    assert len(files) == len(record)
    for name, entry in record.items():
        assert sha256((folder / name).read_bytes()) == entry["sha256_after"], name
    assert {(file.name, file.package, file.version) for file in files} == {
        (name, entry["package"], entry["version"]) for name, entry in record.items()
    }


def test_what_a_rewrite_leaves_alone_has_one_hash() -> None:
    record = json.loads((STATIC_VENDOR / RECORD).read_text())

    changed = {
        n for n, entry in record.items() if entry["sha256_before"] != entry["sha256_after"]
    }
    assert changed == {
        "preact.js",
        "hooks.js",
        "signals.js",
        "signals-core.js",
        "marked.js",
    }


def test_the_modules_import_each_other_by_relative_path() -> None:
    imports = {
        found
        for path in STATIC_VENDOR.glob("*.js")
        for found in re.findall(r"""\bfrom\s*["']([^"'\s]+)["']""", path.read_text())
    }

    assert imports == set(MODULES.values())


def test_a_bare_import_becomes_relative() -> None:
    source = "import{h}from\"preact\";import{x}from './y.js';f()\n//# sourceMappingURL=a.mjs.map\n"

    assert rewrite_imports(source, "a.js") == (
        "import{h}from\"./preact.js\";import{x}from './y.js';f()\n"
    )


def test_an_import_that_is_not_vendored_is_refused() -> None:
    with pytest.raises(VendorError, match=r"a\.js imports 'react', which is not vendored"):
        rewrite_imports('import r from "react"', "a.js")
