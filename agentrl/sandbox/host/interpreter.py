"""Interpreter paths: the files, programs and preloaded modules that code may use."""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import stat
import sys
import sysconfig

PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
SYSTEM_FILES = (
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/timezone",
    "/etc/nsswitch.conf",
    "/etc/alternatives",
    # Without it a distribution's node does not start.
    "/etc/ssl/openssl.cnf",
)


class Interpreter:
    """Paths of the running interpreter, as the code will see them.

    An interpreter under a closed folder (``~/.pyenv``) cannot be reached by another uid. Its
    folders are then opened while the supervisor still may, and the import path leads through those
    descriptors (``/proc/self/fd/N``): no copy, no mount, and no right beyond reading.

    Args:
        other_uid: the code runs under a uid other than this process's.
        extra: further folders of modules that the code may import.
    """

    def __init__(self, *, other_uid: bool, extra: tuple[str, ...]) -> None:
        prefix = os.path.realpath(sys.base_prefix)
        folders = [os.path.join(prefix, "lib"), *map(os.path.realpath, extra)]
        folders += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
        folders += [path for path in sys.path if os.path.isdir(path)]
        self.keep: tuple[int, ...] = ()
        self.read: tuple[str, ...] = SYSTEM_FILES
        reachable = not other_uid or all(map(_open_to_all, (prefix, *extra)))
        bin_folder = os.path.join(prefix, "bin")
        self.read_exec = (*PROGRAMS, bin_folder, *dict.fromkeys(folders))
        self.path = "/usr/local/bin:/usr/bin:/bin"
        sys.path[:] = [path for path in sys.path if os.path.isdir(path)] + list(extra)
        if reachable:
            if bin_folder not in self.path.split(":"):
                self.path = f"{bin_folder}:{self.path}"
            sys.executable = os.path.realpath(sys.executable)
        else:
            self._lead_through_descriptors(prefix, extra)
            sys.executable = shutil.which("python3", path=self.path) or ""

    def _lead_through_descriptors(self, prefix: str, extra: tuple[str, ...]) -> None:
        renamed: dict[str, str] = {}
        for folder in (prefix, *extra):
            fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self.keep += (fd,)
            renamed[folder] = f"/proc/self/fd/{fd}"
        renamed[sys.base_prefix] = renamed[prefix]

        def moved(path: str) -> str:
            for folder, via in renamed.items():
                if path == folder or path.startswith(folder + "/"):
                    return via + path[len(folder) :]
            return path

        sys.path[:] = [moved(path) for path in sys.path]
        sys.path_importer_cache.clear()
        for module in list(sys.modules.values()):
            spec = getattr(module, "__spec__", None)
            if spec is not None and spec.submodule_search_locations is not None:
                spec.submodule_search_locations = [
                    moved(path) for path in spec.submodule_search_locations
                ]
                module.__path__ = spec.submodule_search_locations


def preload(modules: tuple[str, ...]) -> str | None:
    """Import what every run finds loaded already; answers what could not be imported, or None."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001
            # The boundary: the owner reads it as a wrong setting.
            return f"{name}: {type(error).__name__}: {error}"
    # What the imports left is freed once here, not in each fork.
    gc.collect()
    return None


def _open_to_all(path: str) -> bool:
    """Whether any uid may pass every folder down to ``path`` and list it."""
    path = os.path.realpath(path)
    if not os.stat(path).st_mode & stat.S_IROTH:
        return False
    while path != "/":
        if not os.stat(path).st_mode & stat.S_IXOTH:
            return False
        path = os.path.dirname(path)
    return True
