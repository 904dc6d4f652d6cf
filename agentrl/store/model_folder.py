"""Model folder: the folder that ``model.path`` names, on this machine, on the Hugging Face hub or
at a URL. What comes from elsewhere lies in a cache, whose paths say where it came from.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from agentrl.errors import DataError
from agentrl.store.disk import locked, replacing_folder
from agentrl.store.remote_folder import RemoteFolder, is_url

_HUB_NAME = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[\w.-]+)(@(?P<revision>[\w./-]+))?", re.ASCII
)
_SUFFIXES = (".json", ".safetensors", ".jinja", ".txt", ".model")
_WANTED = tuple(f"*{suffix}" for suffix in _SUFFIXES)
# Repositories hold the same weights in other formats too.
_UNWANTED = ("*/*", "consolidated*")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LINE_EVERY_S = 15.0
_LINE_WIDTH = 80


def given_model(setting: str, base_dir: Path, *, key: str = "model.path") -> Path:
    """The folder that a setting names; a model of the hub is downloaded where the cache lacks it.

    Args:
        setting: a folder, or ``organisation/name`` on the hub, with ``@revision`` behind it for one
            that is not the newest. A folder goes first. Or a URL of fsspec, as ``s3://bucket/model``.
        base_dir: where relative folders start.
        key: of the setting, for errors.

    Raises:
        DataError: there is no such folder, and the hub has no such model or cannot be reached.
    """
    if is_url(setting):
        return _fetched(setting, key)
    path = base_dir / Path(setting).expanduser()
    if path.is_dir():
        return path
    named = _HUB_NAME.fullmatch(setting)
    if named is None:
        raise DataError(
            f"{key}='{setting}' is no folder ({path}); name one in Hugging Face's layout, a model "
            "of its hub as organisation/name, or a URL"
        )
    return _downloaded(named, path, key)


def model_here(path: str) -> str:
    """The folder of a model on this machine, which another one has at ``path``: fetched from where
    it came from, which the path of a cache says; ``path`` itself where it says nothing.

    Raises:
        DataError: it cannot be fetched, or is not the same any more.
    """
    *_, repo, kind, name = ("", "", *Path(path).parts)
    source = unquote(kind)
    if kind == "snapshots" and repo.startswith("models--"):
        source = f"{repo.removeprefix('models--').replace('--', '/')}@{name}"
    elif not is_url(source):
        return path
    found = given_model(source, Path("/"))
    if found.name != name:
        raise DataError(
            f"model.path={source!r} holds other files than when the run began; start the run again"
        )
    return str(found)


def _fetched(url: str, key: str) -> Path:
    """The copy of the folder at ``url`` as it is now; a new one where it has changed."""
    remote = RemoteFolder(url, key)
    stamps = {
        name: remote.stamp(name) for name in remote.names() if name.endswith(_SUFFIXES)
    }
    if "config.json" not in stamps:
        raise DataError(
            f"{key}={url!r} must hold a model in Hugging Face's layout, got "
            f"{', '.join(stamps) or 'no such files'} and no config.json; name another folder"
        )
    own = Path(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "agentrl", "models"
    )
    digest = hashlib.sha256(repr(stamps).encode()).hexdigest()[:16]
    folder = own / quote(remote.url, safe="") / digest
    # the ranks of a machine ask at once
    with locked(folder.with_suffix(".lock")):
        if not folder.is_dir():
            with replacing_folder(folder) as part:
                for name in stamps:
                    remote.get(name, part / name)
    return folder


def cached_model(setting: str, base_dir: Path) -> Path | None:
    """The same without any download; None where the folder, or the model in the cache, does not
    exist.
    """
    path = base_dir / Path(setting).expanduser()
    if path.is_dir():
        return path
    named = _HUB_NAME.fullmatch(setting)
    if named is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(named["repo"], "config.json", revision=named["revision"])
    return Path(found).parent if isinstance(found, str) else None


def with_commit(setting: str, folder: Path) -> str:
    """The setting, with the commit where ``folder`` is a snapshot of the hub's, so that it names
    one model for good.
    """
    named = _HUB_NAME.fullmatch(setting)
    is_snapshot = folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name)
    return f"{named['repo']}@{folder.name}" if named and is_snapshot else setting


def pinned(setting: str, recorded: object) -> str:
    """The setting as the run began with it: at the commit in its record, whatever the hub has
    now.
    """
    named = _HUB_NAME.fullmatch(setting)
    same = named and isinstance(recorded, str) and recorded.startswith(f"{named['repo']}@")
    return str(recorded) if same else setting


def _downloaded(named: re.Match[str], path: Path, key: str) -> Path:
    setting, repo, revision = named.group(0, "repo", "revision")
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    fetch = functools.partial(
        snapshot_download,
        repo,
        revision=revision,
        allow_patterns=[*_WANTED],
        ignore_patterns=[*_UNWANTED],
    )
    # A commit never changes, so that a copy in the cache needs no look at the hub.
    if _COMMIT.fullmatch(revision or ""):
        with suppress(FileNotFoundError):
            return Path(fetch(local_files_only=True))
    try:
        folder = Path(fetch(tqdm_class=None if sys.stderr.isatty() else _lines()))
    except GatedRepoError:
        why = (
            "is open to those alone who accepted its terms; accept them at "
            f"{constants.ENDPOINT}/{repo}, set HF_TOKEN"
        )
    except RepositoryNotFoundError:
        why = (
            f"does not exist on {constants.ENDPOINT}, or is private (set HF_TOKEN); correct the "
            "name"
        )
    except RevisionNotFoundError:
        why = f"has no revision {revision!r} on {constants.ENDPOINT}; leave it out for the newest"
    except Exception as error:  # noqa: BLE001  the boundary: whatever the network, the hub and its client come to
        why = (
            f"could not be downloaded from {constants.ENDPOINT}: {_reason(error)}; fix the "
            "network, or download it "
            f"elsewhere (`hf download {repo} --local-dir FOLDER`) and name that folder"
        )
    else:
        if not any(folder.glob("*.safetensors")):
            raise DataError(
                f"{key}='{setting}': the hub's model has no *.safetensors; name one that has"
            )
        return folder
    raise DataError(
        f"{key}='{setting}' is no folder ({path}), and the model of that name {why}"
    )


def _reason(error: BaseException) -> str:
    """The first line of the cause that says most: the innermost."""
    cause = error
    while (inner := cause.__cause__ or cause.__context__) is not None:
        cause = inner
    return f"{type(cause).__name__}: {(str(cause) or 'no more is known').splitlines()[0]}"


def _lines() -> Any:
    """The hub's progress bars as plain lines now and then, for where there is no terminal."""
    from huggingface_hub.utils.tqdm import tqdm

    class Lines(tqdm):
        def __init__(self, *args: Any, **keywords: Any) -> None:
            keywords |= {
                "disable": False,
                "mininterval": _LINE_EVERY_S,
                "ncols": _LINE_WIDTH,
            }
            super().__init__(*args, **keywords)  # type: ignore[no-untyped-call]

        def display(self, msg: str | None = None, pos: int | None = None) -> bool:
            self.fp.write(f"{str(self).strip()}\n")
            return True

        def moveto(self, n: int) -> None:
            """Lines stay where they are."""

    return Lines
