"""Object loading: a setting's name becomes an object or a function, or says what is missing."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

from agentrl.errors import AgentRLError, ConfigError, did_you_mean
from agentrl.types.user_code.place import described, raised_at
from agentrl.types.user_code.wall import failed_as, wall

T = TypeVar("T")

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "gymnasium": ("gymnasium>=1.0",),
    "math": ("math-verify>=0.9",),
    "mcp": ("anyio>=4", "httpx2>=2.0", "mcp>=2"),
    "megatron": ("megatron-core==0.16.*",),
    "mlflow": ("mlflow-skinny>=3.0",),
    "openenv": ("websockets>=15",),
    "opentelemetry": (
        "opentelemetry-api>=1.30",
        "opentelemetry-sdk>=1.30",
        "opentelemetry-exporter-otlp-proto-http>=1.30",
    ),
    "prometheus": ("prometheus-client>=0.20",),
    "s3": ("s3fs>=2024.6",),
    "tensorboard": ("tensorboard>=2.18",),
    "trackio": ("trackio>=0.43",),
    "wandb": ("wandb>=0.31",),
}
"""Requirements of each extra of ``pyproject.toml``. Messages name these, since on the public
registry the name of this package is another project's.
"""


def install(extra: str) -> str:
    """The command that brings the packages of an extra, in backticks."""
    return f"`pip install {' '.join(map(repr, PACKAGES[extra]))}`"


def remedy(error: BaseException) -> str:
    """``; `pip install ...` `` where a user's module misses a package of an extra; else empty."""
    missing = (getattr(error, "name", None) or "").partition(".")[0].replace("_", "-")
    for extra, packages in PACKAGES.items():
        if missing in (package.partition(">")[0] for package in packages):
            return f"; {install(extra)}"
    return ""


@contextmanager
def needed(what: str, extra: str) -> Iterator[None]:
    """Around the import of an optional package.

    Args:
        what: needs it, such as ``GymnasiumEnv``.
        extra: a key of ``PACKAGES``.

    Raises:
        ConfigError: the import failed; the message has the command that brings the package.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"{what} needs a package that cannot be imported: {error}; {install(extra)}"
        ) from error


_MODULE = re.compile(r"[^\s/:]+")
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
    source = source_of(text)
    if not source:
        raise ConfigError(
            f"{text!r} names no object: write package.module:name or path/to/file.py:name"
        )
    name = text.rpartition(":")[2]
    is_file = source.endswith(".py")
    module = _module_of_file(source, base_dir) if is_file else _module_of_name(source)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            inner = "" if found is module else f":{getattr(found, '__qualname__', found)}"
            raise ConfigError(
                f"{source}{inner} has no {part!r}{did_you_mean(part, dir(found))}"
            )
        found = getattr(found, part)
    return found


def source_of(text: str) -> str:
    """The file or module that ``load_object`` would import for ``text``; empty for none."""
    source, _, name = text.rpartition(":")
    names = all(part.isidentifier() for part in name.split("."))
    found = names and (source.endswith(".py") or _MODULE.fullmatch(source))
    return source if found else ""


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
    named = (
        source,
        start,
        "" if os.path.isabs(start) or os.path.isabs(source) else os.getcwd(),
    )
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
            # A half-run module must not be what the next import finds.
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


Broken: TypeAlias = Callable[[str], AgentRLError]
"""Makes a setting's error of the rule that it breaks, as ``partial(Section.broken, "name")`` does.
"""


def built_in(name: str, known: Mapping[str, T], broken: Broken) -> T | None:
    """What a setting names among what is built in; None for a reference to a user's own.

    Raises:
        AgentRLError: as ``broken`` makes it: it is neither.
    """
    if name in known or ":" in name:
        return known.get(name)
    raise broken(
        f"={name!r} is unknown{did_you_mean(name, known)}; choose one of {', '.join(known)}, or "
        "name your own as file.py:NAME or module:NAME"
    )


def load_named(reference: str, base_dir: str | Path | None, broken: Broken) -> Any:
    """The object that a setting names.

    Args:
        reference: ``file.py:name`` or ``module:name``.
        base_dir: the folder that a relative file starts from.
        broken: of the setting.

    Raises:
        AgentRLError: as ``broken`` makes it: there is no such object, or its file cannot be
            imported.
    """
    try:
        return load_object(reference, base_dir)
    except ConfigError as error:
        made = broken(f"={reference!r} cannot be loaded: {error}")
        made.exit_code = max(error.exit_code, made.exit_code)
        raise made from error


def load_function(
    reference: str, base_dir: str | Path | None, broken: Broken, takes: str
) -> Callable[..., Any]:
    """The function or class that a setting names.

    Args:
        reference, base_dir, broken: as of ``load_named``.
        takes: the arguments in words, such as ``(rewards, state)``.

    Raises:
        AgentRLError: as ``broken`` makes it: as ``load_named``, or it is no function.
    """
    found = load_named(reference, base_dir, broken)
    if not callable(found):
        raise broken(
            f"={reference!r} must be a function or class that takes {takes}, got "
            f"{type(found).__name__}; name one"
        )
    function: Callable[..., Any] = found
    return function


def check_takes(
    function: Callable[..., Any],
    reference: str,
    broken: Broken,
    takes: str,
    *arguments: Any,
    **keywords: Any,
) -> None:
    """Refuses a function that cannot be called with these arguments; their values play no part.

    Raises:
        AgentRLError: as ``broken`` makes it.
    """
    signature = signature_of(function)
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        raise broken(
            f"={reference!r} must take {takes}, but has the signature {signature} ({error}); "
            "change one of them"
        ) from error


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Its signature; that of any arguments for a class in C, which tells nothing of its own."""
    try:
        return inspect.signature(function)
    except ValueError:
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return inspect.Signature(
            [inspect.Parameter(kind.name.lower(), kind) for kind in kinds]
        )


def needed_arguments(function: Callable[..., Any]) -> list[str]:
    """The names of the arguments that every call must give."""
    return [
        name
        for name, own in signature_of(function).parameters.items()
        if own.default is own.empty
        and own.kind not in (own.VAR_KEYWORD, own.VAR_POSITIONAL)
    ]


def taken_arguments(function: Callable[..., Any], given: Mapping[str, T]) -> dict[str, T]:
    """Those of ``given`` that the function takes; all where it takes ``**keywords``."""
    parameters = signature_of(function).parameters
    everything = any(own.kind is own.VAR_KEYWORD for own in parameters.values())
    return {name: own for name, own in given.items() if everything or name in parameters}


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A user's function; where it raises or returns another type, the error names its setting.

    Args:
        function: the user's.
        returns: the type that it must return; of several, the first one is told.
        broken: of the setting.
        reference: the setting's value.
        part: what the function is within the object that the setting names; empty where it is that
            object.
    """

    function: Callable[..., Any]
    returns: type | tuple[type, ...]
    broken: Broken
    reference: str
    part: str = ""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """What the function returns.

        Raises:
            AgentRLError: as ``broken`` makes it, or the function's own.
        """
        whose = f"={self.reference!r}" + (f": its {self.part}" if self.part else "")
        with wall(failed_as(self.broken, f"{whose} raised", "; correct it")):
            found = self.function(*arguments, **keywords)
        if not isinstance(found, self.returns):
            first = self.returns[0] if isinstance(self.returns, tuple) else self.returns
            name = first.__name__
            raise self.broken(
                f"{whose} must return {'an' if name[0] in 'AEIOU' else 'a'} {name}, got "
                f"{type(found).__name__}; return one"
            )
        return found
