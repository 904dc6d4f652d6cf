"""What an environment for SGLang servers is made of, and where it lies unless someone says
otherwise.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

SGLANG_VERSION = "0.5.23"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Steps of pip, in order.

    Args:
        name: ``cpu`` or ``gpu``.
        steps: arguments of ``pip install``, one call each.
        torch_index: an index that has this recipe's build of torch beside pip's own ones; None
            needs none.
        stand_ins: whether two modules of ours take the places of what a machine without a GPU
            cannot load.
    """

    name: str
    steps: tuple[tuple[str, ...], ...]
    torch_index: str | None
    stand_ins: bool


GPU = Recipe("gpu", ((f"sglang=={SGLANG_VERSION}",),), torch_index=None, stand_ins=False)
"""The wheel with all that it asks for: CUDA builds of torch and of SGLang's kernels."""

CPU = Recipe(
    "cpu",
    (
        ("torch==2.13.0",),
        (
            "--no-deps",  # what SGLang's wheel asks for itself is for GPUs
            f"sglang=={SGLANG_VERSION}",
            "triton==3.7.1",
            "torchvision==0.28.0",
            "xgrammar==0.2.7",
            "compressed-tensors==0.18.0",
            "apache-tvm-ffi==0.1.11",
            "outlines==0.1.11",
            "gguf==0.19.0",
        ),
        (
            "aiohttp",
            "anthropic>=0.20.0",
            "blobfile==3.0.0",
            "dill",
            "distro",
            "easydict",
            "einops",
            "fastapi",
            "huggingface_hub",
            "interegular",
            "IPython",
            "jsonschema",
            "llguidance<2.0.0,>=1.7.6",
            "loguru",
            "msgspec",
            "numba==0.65.1",
            "numpy==2.3.5",
            "openai==2.8.0",
            "openai-harmony==0.0.4",
            "orjson",
            "packaging",
            "partial_json_parser",
            "pillow",
            "prometheus-client",
            "psutil",
            "pybase64",
            "pydantic",
            "python-multipart",
            "pyzmq",
            "regex",
            "requests",
            "safetensors",
            "scipy",
            "sentencepiece==0.2.1",
            "setproctitle",
            "soundfile==0.13.1",
            "tiktoken",
            "tokenizers==0.23.2",
            "tqdm",
            "transformers==5.19.0",
            "uvicorn>=0.51",
            "uvloop",
            "watchfiles",
            "xxhash",
            "zstandard",
        ),
    ),
    torch_index="https://download.pytorch.org/whl/cpu",
    stand_ins=True,
)
"""Without a GPU: the CPU build of torch, SGLang's wheel without its CUDA packages, and two
stand-ins. Linux, x86-64.
"""


def default_folder(recipe: Recipe) -> Path:
    """Below the user's data folder (``XDG_DATA_HOME``, by default ``~/.local/share``)."""
    data = Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser()
    return data / "agentrl" / f"sglang-{SGLANG_VERSION}-{recipe.name}"


def default_python() -> Path:
    """The interpreter of the default environment: the GPU's where it is there, otherwise the
    CPU's.
    """
    on_gpu = interpreter(default_folder(GPU))
    return on_gpu if on_gpu.exists() else interpreter(default_folder(CPU))


def interpreter(folder: Path) -> Path:
    """The interpreter of the environment in a folder."""
    return folder / "bin" / "python"
