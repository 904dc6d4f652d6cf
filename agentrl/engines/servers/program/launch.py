"""Launch: how servers of a program are started: its interpreter, version, device, command line and
environment.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Generic, Literal, TypeVar

from agentrl.engines.base import EnginePlace
from agentrl.engines.servers.client import ModelSizes
from agentrl.engines.servers.section import ServersSpec, argument_name
from agentrl.errors import ConfigError, MachineError

Spec = TypeVar("Spec", bound=ServersSpec)

# A build of torch that knows no GPU says so in a file, which takes 3 s less than to import it.
_PROBE = """
import importlib.metadata, importlib.util, os, runpy
program, torch = map(importlib.metadata.version, ({!r}, "torch"))
[folder] = importlib.util.find_spec("torch").submodule_search_locations
built = runpy.run_path(os.path.join(folder, "version.py"))
device = "cpu"
if built.get("cuda") or built.get("hip"):
    import torch
    device = "cuda" if torch.cuda.is_available() else "cpu"
print(program, device)
"""
_PROBE_S = 120.0


def server_seed() -> int:
    """Of one start of a server. Servers of one seed would draw alike, and siblings on them would
    repeat each other's tokens."""
    return secrets.randbits(30)


class ProgramServers(Generic[Spec]):
    """What every ``ServerKind`` has whose servers are a program of another environment.

    Args:
        place: what is served.
        spec: how.

    Raises:
        ConfigError: ``context_tokens`` above what the model was made for, or ``tp_size`` ranks that
            cannot share it; a server would say so minutes later, in its log.
        MachineError: the interpreter is missing, or its environment does not hold the program, or
            an old one.
    """

    def __init__(self, place: EnginePlace, spec: Spec) -> None:
        self.place = place
        self.spec = spec
        self.sizes = ModelSizes.read(place)
        heads = self.sizes.num_heads
        if not spec.urls and heads % spec.tp_size:
            raise ConfigError(
                f"{self._where}.tp_size must divide the model's num_attention_heads={heads} "
                "(each rank of a server has as many heads as the others), got "
                f"{spec.tp_size}; choose a divisor, or set it to 1"
            )
        self.device = spec.device
        if not spec.urls and not spec.command:
            offered = self._ask_environment()
            self.device = spec.device or offered

    @abstractmethod
    def own_environment(self) -> Mapping[str, str]:
        """Variables of the program. They replace this process's own; the section's ``env`` replaces
        them."""

    def environment(self, index: int = 0) -> dict[str, str]:
        """This process's environment without what belongs to its own interpreter, for its server of
        that index.

        A model that is a folder needs no look at the network; a rank has one thread unless said
        otherwise.
        """
        kept = os.environ.copy()
        for name in ("PYTHONPATH", "PYTHONHOME"):
            kept.pop(name, None)
        own = {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            # What a server says before it dies has to reach its log.
            "PYTHONUNBUFFERED": "1",
        }
        if self.device == "cpu":
            kept.setdefault("OMP_NUM_THREADS", "1")
        if gpus := self.shared_ids or self._own_ids(index):
            own["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        return kept | own | dict(self.own_environment()) | dict(self.spec.env)

    @property
    def health_s(self) -> float:
        """See ``ServerKind.health_s``: on cores that others use, a first image takes minutes."""
        return 300.0 if self.device == "cpu" else 30.0

    @property
    def shared_ids(self) -> tuple[str, ...]:
        """The GPUs that a server shares with ranks; none on a CPU."""
        shared = self.place.shared
        return () if shared is None or self.device == "cpu" else shared.ids

    def words(self, program: Sequence[str], arguments: Mapping[str, object]) -> list[str]:
        """The command line of a program with arguments, which ``server_args`` replace or join.

        Args:
            program: what the interpreter is told to run, where ``command`` names no other one.
            arguments: by name; true is a flag, false and None are left out.
        """
        words = list(self.spec.command) or [self._python, *program]
        given = {
            argument_name(name): value for name, value in self.spec.server_args.items()
        }
        for name, value in {**arguments, **given}.items():
            if value is None or value is False:
                continue
            words.append(f"--{name}")
            if value is not True:
                items: Sequence[object] = (
                    value if isinstance(value, list | tuple) else (value,)
                )
                words += [str(item) for item in items]
        return words

    @property
    def _where(self) -> str:
        return type(self.spec).__name__

    @property
    def _python(self) -> str:
        return str(self.spec.interpreter(self.place))

    def _own_ids(self, index: int) -> tuple[str, ...]:
        """A server's part of the GPUs that a rollout worker was given for all of its servers."""
        each = self.spec.tp_size
        seen = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
        if self.device == "cpu" or len(seen) != self.spec.num_servers * each:
            return ()
        return tuple(seen[index * each : (index + 1) * each])

    def _ask_environment(self) -> Literal["cpu", "cuda"]:
        """The device that the servers' environment offers."""
        program = self.spec.server_environment
        remedy = (
            f"run `agentrl install {program.engine}`, or set {self._where}.python to the "
            "interpreter of such an environment"
        )
        if not Path(self._python).is_file():
            raise MachineError(
                f"{self._where}.python='{self._python}' is no interpreter; {remedy}"
            )
        try:
            answer = subprocess.run(
                [self._python, "-c", _PROBE.format(program.engine)],
                env=self.environment(),
                capture_output=True,
                text=True,
                timeout=_PROBE_S,
                check=True,
            )
            version, device = answer.stdout.split()
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
            raise MachineError(
                f"{self._python} cannot run {program.product}: {''.join(said)}; {remedy}"
            ) from error
        program.require(version, f"the environment of {self._python}")
        return "cuda" if device == "cuda" else "cpu"
