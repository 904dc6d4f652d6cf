"""Object loading: ``package.module:name`` or ``path/to/file.py:name`` becomes an object."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import threading
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from agentrl.errors import AgentRLError, ConfigError, did_you_mean
from agentrl.types.user_code.optional_packages import remedy
from agentrl.types.user_code.place import described, raised_at
from agentrl.types.user_code.wall import wall

_FILE_PREFIX = "agentrl_file_"
# Held while a file is run, by one thread; reentrant, as a file may load another.
_file_lock = threading.RLock()
# Names of modules, by what named their files.
_modules_of_files: dict[tuple[str, str, str], str] = {}


def load_object(text: str, base_dir: str | Path | None = None) -> Any:
    """The object that ``text`` names.

    A file is loaded once in a process, under a module name made of its resolved path, and stays in
    ``sys.modules``: loading it twice gives the same classes, and pickles of them open wherever the
    same file was loaded.

    Args:
        text: ``package.module:name`` or ``path/to/file.py:name``; ``name`` may be dotted.
        base_dir: the folder that a relative path starts from; the working directory where None.

    Returns:
        The object, unchecked: the caller knows what it needs.

    Raises:
        ConfigError: the text has another form, the module or file does not exist, it raised when
            imported, or it has no such name.
    """
    source, colon, name = text.rpartition(":")
    if not colon or not source or not name:
        raise ConfigError(
            f"{text!r} names no object: write package.module:name or path/to/file.py:name"
        )
    is_file = source.endswith(".py")
    module = _module_of_file(source, base_dir) if is_file else _module_of_name(source)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            inner = "" if found is module else f":{getattr(found, '__qualname__', found)}"
            raise ConfigError(f"{source}{inner} has no {part!r}{did_you_mean(part, dir(found))}")
        found = getattr(found, part)
    return found


def _module_of_name(name: str) -> ModuleType:
    def failed(error: BaseException) -> ConfigError:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{name}.".startswith(f"{missing}."):
            return _import_failure(name, error)
        return ConfigError(_missing_module(name, missing))

    with wall(failed, passes=()):
        return importlib.import_module(name)


def file_modules() -> list[ModuleType]:
    """The modules of files that ``load_object`` loaded here; no other process can import them by
    name.
    """
    return [module for name, module in sys.modules.items() if name.startswith(_FILE_PREFIX)]


def _module_of_file(source: str, base_dir: str | Path | None) -> ModuleType:
    start = "" if base_dir is None else str(base_dir)
    named = (source, start, "" if os.path.isabs(start) or os.path.isabs(source) else os.getcwd())
    loaded = sys.modules.get(_modules_of_files.get(named, ""))
    # Every episode asks for its tools.
    if loaded is not None:
        return loaded
    module = _load_file(source, base_dir)
    _modules_of_files[named] = module.__name__
    return module


def _load_file(source: str, base_dir: str | Path | None) -> ModuleType:
    path = Path(base_dir or ".", Path(source).expanduser()).resolve()
    if not path.is_file():
        neighbours = [entry.name for entry in path.parent.glob("*.py")]
        raise ConfigError(f"there is no file {path}{did_you_mean(path.name, neighbours)}")
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    name = f"{_FILE_PREFIX}{path.stem}_{digest}"
    with _file_lock:
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ConfigError(f"{path} cannot be imported as Python")
        module = importlib.util.module_from_spec(spec)
        # Before it runs: dataclasses and pickle look their own module up.
        sys.modules[name] = module
        try:
            with wall(partial(_import_failure, str(path)), passes=()):
                spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module


def _missing_module(name: str, missing: str) -> str:
    parent, _, leaf = missing.rpartition(".")
    known = [
        entry.stem
        for folder in getattr(sys.modules.get(parent), "__path__", ())
        for entry in Path(folder).glob("[!_]*")
    ]
    return (
        f"there is no module {missing!r} (needed for {name!r}){did_you_mean(leaf, known)}; "
        "install it, or name a file as path/to/file.py:name"
    )


def _import_failure(what: str, error: BaseException) -> ConfigError:
    # It names the remedy.
    if isinstance(error, AgentRLError):
        return ConfigError(f"{raised_at(error) or what}: {error}")
    return ConfigError(f"{what} raised when imported: {described(error)}{remedy(error)}")
