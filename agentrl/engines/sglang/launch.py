"""The command line and the environment of a server."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from agentrl.engines.sglang.sglang_spec import SGLangEngineSpec
from agentrl.engines.sglang.versions import dialect_of
from agentrl.errors import MachineError

__all__ = [
    "SPARE_POSITIONS",
    "free_port",
    "prepared",
    "server_command",
    "server_environment",
    "server_url",
]

SPARE_POSITIONS = 8
"""SGLang refuses a prompt that leaves fewer than seven positions of its context; servers get these in addition."""

_PROBE = "import importlib.metadata as m, torch; print(m.version('sglang'), 'cuda' if torch.cuda.is_available() else 'cpu')"
_PROBE_S = 120.0
_HOST = "127.0.0.1"
_CPU_ARGUMENTS: Mapping[str, object] = {
    "device": "cpu",
    "attention-backend": "torch_native",
    "disable-cuda-graph": True,
    "mem-fraction-static": 0.1,
}
_CPU_SEQUENCES = 64
_CPU_ENVIRONMENT = {"SGLANG_USE_CPU_ENGINE": "1"}


def prepared(spec: SGLangEngineSpec) -> SGLangEngineSpec:
    """The same with ``device`` filled in, once the servers' environment was asked what it is.

    Raises:
        MachineError: the interpreter is missing, or its environment holds no SGLang, or a version that is not known.
    """
    if spec.urls or spec.command:
        return spec
    mend = "run `agentrl install sglang`, or set rollout.sglang.python to the interpreter of such an environment"
    if spec.python is None or not Path(spec.python).is_file():
        raise MachineError(f"rollout.sglang.python='{spec.python}' is no interpreter; {mend}")
    try:
        answer = subprocess.run(
            [spec.python, "-c", _PROBE],
            env=server_environment(spec),
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            check=True,
        )
        version, device = answer.stdout.split()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
        raise MachineError(f"{spec.python} cannot run SGLang: {''.join(said)}; {mend}") from error
    dialect_of(version, f"the environment of {spec.python}")
    return (
        spec
        if spec.device is not None
        else replace(spec, device="cuda" if device == "cuda" else "cpu")
    )


def server_command(spec: SGLangEngineSpec, *, model: Path, port: int, label: str) -> list[str]:
    """The command line of one server.

    Args:
        spec: how.
        model: folder of the weights that it starts with.
        port: where it listens.
        label: of those weights.
    """
    arguments: dict[str, object] = dict(_CPU_ARGUMENTS) if spec.device == "cpu" else {}
    arguments |= {
        "model-path": str(model),
        "host": _HOST,
        "port": port,
        "dtype": spec.dtype,
        "context-length": spec.context_tokens + SPARE_POSITIONS,
        "weight-version": label,
        "skip-server-warmup": True,
        "sleep-on-idle": True,  # else the scheduler spins, and takes a core from training
        "skip-tokenizer-init": not (spec.stop_strings or spec.sees_images),
        "disable-fast-image-processor": spec.sees_images,  # PIL's pixels, whatever else is installed there
        "tp-size": spec.tp_size if spec.tp_size > 1 else None,
        "max-running-requests": spec.max_running_requests,
        "page-size": spec.page_size,
        "max-total-tokens": _kv_tokens(spec),
    }
    if spec.kv_memory_fraction is not None:
        arguments["mem-fraction-static"] = spec.kv_memory_fraction
    arguments |= {
        name.lstrip("-").replace("_", "-"): value for name, value in spec.server_args.items()
    }
    words = list(spec.command) or [str(spec.python), "-m", "sglang.launch_server"]
    for name, value in arguments.items():
        if value is None or value is False:
            continue
        words.append(f"--{name}")
        if value is not True:
            words += (
                [str(item) for item in value] if isinstance(value, list | tuple) else [str(value)]
            )
    return words


def _kv_tokens(spec: SGLangEngineSpec) -> int | None:
    """SGLang sizes its KV cache by a device's memory, which says nothing where there is no device."""
    if spec.kv_tokens is not None:
        return spec.kv_tokens + SPARE_POSITIONS
    return (
        _CPU_SEQUENCES * (spec.context_tokens + SPARE_POSITIONS) if spec.device == "cpu" else None
    )


def server_environment(spec: SGLangEngineSpec) -> dict[str, str]:
    """This process's environment without what belongs to its own interpreter, never a look at the network for a
    model that is a folder, and one thread a rank unless said otherwise."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONHOME")
    }
    own = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "SGLANG_MM_AVOID_RETOKENIZE": "1",  # ids beside images stay as they are sent
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # for SPARE_POSITIONS, which no token reaches
    }
    if spec.device == "cpu":
        cores = sorted(os.sched_getaffinity(0))
        binding = "|".join(str(cores[rank % len(cores)]) for rank in range(spec.tp_size))
        own |= _CPU_ENVIRONMENT | (
            {"SGLANG_CPU_OMP_THREADS_BIND": binding} if spec.tp_size > 1 else {}
        )
        kept.setdefault("OMP_NUM_THREADS", "1")
    return kept | own | dict(spec.env)


def free_port() -> int:
    """A port of this machine that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def server_url(port: int) -> str:
    """Where a server started here is reached."""
    return f"http://{_HOST}:{port}"
