"""verl data set: rows of a class or function that verl's ``data.custom_cls`` names.

The class is called as verl calls it: ``data_files``, ``tokenizer``, ``processor``, ``config``,
``max_samples``, as far as it takes them. Only what a row says in messages is used: agentrl renders
prompts itself, so ``input_ids`` and masks of a row play no part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agentrl.config.sections import CustomDataConfig
from agentrl.errors import DataError
from agentrl.types.user_code.load import load_function, needed_arguments, taken_arguments

_TOKENS = frozenset(
    {"input_ids", "attention_mask", "position_ids", "raw_prompt_ids", "dummy_tensor"}
)


class DatasetConfig(dict[str, Any]):
    """verl's ``config.data`` as a mapping whose keys are attributes too; a key that is not given is
    an AttributeError, as OmegaConf's struct mode has it.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"the config of data.custom has no {name!r}; give it in data.custom.args"
            ) from None


def custom_rows(
    own: CustomDataConfig, path: Path, base_dir: Path, seed: int
) -> Iterable[Any]:
    """The rows of the user's class or function, with verl's tokens left out.

    Args:
        own: ``data.custom``.
        path: ``data.train``, which becomes ``data_files``.
        base_dir: where ``data.custom.path`` starts.
        seed: ``run.seed``.

    Raises:
        ConfigError: the class does not exist, or needs an argument that nobody gives.
        DataError: it gives no rows.
    """
    named = f"{own.path}:{own.name}"
    function = load_function(
        named,
        base_dir,
        lambda rule: own.broken("path", rule),
        "(data_files, tokenizer, config)",
    )
    files = [str(path)]
    keys = {"prompt_key": "prompt", "return_raw_chat": True, "shuffle": False, "seed": seed}
    given: dict[str, Any] = {
        "data_files": files,
        "tokenizer": None,
        "processor": None,
        "config": DatasetConfig({"train_files": files, **keys, **own.args}),
        # This is verl's word for all rows.
        "max_samples": -1,
    }
    needed = [name for name in needed_arguments(function) if name not in given]
    if needed:
        raise own.broken(
            "path",
            f"={named!r} needs {needed[0]!r}, and is called with {', '.join(given)}; give it a "
            "default",
        )
    rows = function(**taken_arguments(function, given))
    if hasattr(rows, "__getitem__") and hasattr(rows, "__len__"):
        return _Rows(rows)
    if isinstance(rows, Iterable):
        return map(_without_tokens, rows)
    raise DataError(
        f"data.custom.path={named!r} must give rows, by numbers or one after the other, got "
        f"{type(rows).__name__}"
    )


class _Rows:
    """Rows by number, read as they are asked for."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        return _without_tokens(self._rows[index])

    def __iter__(self) -> Any:
        return (self[index] for index in range(len(self)))


def _without_tokens(row: Any) -> Any:
    """A row whose prompt is verl's ``raw_prompt``, without tensors."""
    if not isinstance(row, Mapping):
        return row
    kept = {key: value for key, value in row.items() if key not in _TOKENS}
    if "raw_prompt" in kept:
        kept["prompt"] = list(kept.pop("raw_prompt"))
    return kept
