"""Synthetic run: a run of any number of trajectories, whose shards are written by column.

Each shard has the schema of the store; only a column's content is made up. The text of a trajectory
is drawn from a few thousand sentences, and one trajectory of ``RARE_EVERY`` has ``RARE`` in it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.store import RunDirectory
from agentrl.store.trajectories.columns import SCHEMA

RARE = "No such file or directory"
RARE_EVERY = 1000
GROUP_SIZE = 8
TURNS = 4
TOKENS = 2_000
A_SHARD = 125
_WORDS = 4000
_SENTENCES = 3000
_CHARACTERS_A_TOKEN = 4
_STARTED = 1_700_000_000.0


@contextmanager
def large_run(arguments: argparse.Namespace) -> Iterator[Path]:
    """A run of ``arguments.trajectories`` of ``TOKENS`` tokens, ``A_SHARD`` a shard, that may be
    written on, in a folder of its own, which goes with the block.

    Where ``arguments.runs`` names a folder, the run is made there once, and linked from then on.
    """
    runs = None if arguments.runs is None else arguments.runs.resolve()
    with tempfile.TemporaryDirectory(dir=runs) as folder:
        root = Path(folder) / "run"
        if runs is None:
            _make(root, arguments)
        else:
            kept = runs / f"run-{arguments.trajectories}-{arguments.seed}"
            if not kept.exists():
                _make(root, arguments)
                root.rename(kept)
            # a shard is never written in place; the ledger may be
            shutil.copytree(kept, root, copy_function=_link_shard)
        yield root


def _make(root: Path, arguments: argparse.Namespace) -> None:
    number = arguments.trajectories
    shards = max(1, number // A_SHARD)
    make_run(root, trajectories=number, tokens=TOKENS, shards=shards, seed=arguments.seed)


def _link_shard(source: str, target: str) -> None:
    (os.link if source.endswith(".parquet") else shutil.copy2)(source, target)


def make_run(
    root: Path, *, trajectories: int, tokens: int, shards: int, seed: int = 0
) -> None:
    """Makes a run of sealed shards, one a step, with its ledger.

    Args:
        root: a new folder.
        trajectories: all together.
        tokens: of each.
        shards: so many steps, with equal shares.
        seed: of everything made up.
    """
    run = RunDirectory.create(root, {"seed": seed, "created": "2026-01-02T03:04:05Z"})
    random = np.random.default_rng(seed)
    sentences = _sentences(random)
    bounds = np.linspace(0, trajectories, shards + 1).astype(int)
    for step in range(shards):
        table = _table(
            random, sentences, step, int(bounds[step]), int(bounds[step + 1]), tokens
        )
        path = run.shard_path(step, "driver", 1)
        path.parent.mkdir(parents=True)
        pq.write_table(
            table, path, compression="zstd", use_dictionary=False, row_group_size=32
        )
    _write_ledger(run, bounds)


def _sentences(random: np.random.Generator) -> list[str]:
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = [
        "".join(random.choice(letters, size)) for size in random.integers(2, 10, _WORDS)
    ]
    picked = (random.zipf(1.3, (_SENTENCES, 14)) - 1) % _WORDS
    return [" ".join(words[word] for word in row) + ". " for row in picked.tolist()]


def _table(
    random: np.random.Generator,
    sentences: list[str],
    step: int,
    start: int,
    end: int,
    tokens: int,
) -> pa.Table:
    rows = [_texts(random, sentences, index, tokens) for index in range(start, end)]
    count = end - start
    made: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    index = np.arange(start, end)
    made |= {
        "group_index": index // GROUP_SIZE,
        "rollout_index": index % GROUP_SIZE,
        "group_size": np.full(count, GROUP_SIZE),
        "attempt": np.zeros(count),
        "purpose": ["train"] * count,
        "stage": ["rl"] * count,
        "env": np.array(["code", "search", "maths"])[random.integers(0, 3, count)],
        "agents": [["main"]] * count,
        "tools": [
            ["python", "search"] if flag else ["python"]
            for flag in random.random(count) < 0.3
        ],
        "errors": ["{}"] * count,
        "finish_reason": ["stop"] * count,
        "info_numbers": ['{"retok_frac":0.25}'] * count,
        "step": np.full(count, step),
        "task_id": [f"task-{number}" for number in random.integers(0, 5000, count)],
        "data_source": ["synthetic"] * count,
        "status": np.array(["terminated", "truncated", "failed"])[
            random.choice(3, count, p=[0.85, 0.12, 0.03])
        ],
        "reward": random.random(count).round(3),
        "rewards": ['{"correct":1.0}'] * count,
        "num_turns": np.full(count, TURNS),
        "num_calls": random.integers(0, TURNS, count),
        "num_tool_errors": random.integers(0, 4, count),
        "num_policy_tokens": np.full(count, tokens // 2),
        "num_tokens": np.full(count, tokens),
        "policy_version_min": np.full(count, step),
        "policy_version_max": np.full(count, step),
        "started_at": _STARTED + index,
        "ended_at": _STARTED + index + 30,
        "recorded_at": _STARTED + index + 30,
        "side": [b""] * count,
        **{name: [""] * count for name in ("label", "status_reason", "status_detail")},
    }
    made |= _arrays(random, count, tokens, step)
    return pa.table([_column(field, made[field.name]) for field in SCHEMA], SCHEMA)


def _texts(
    random: np.random.Generator, sentences: list[str], index: int, tokens: int
) -> dict[str, str]:
    share = tokens * _CHARACTERS_A_TOKEN // (2 * TURNS)
    picked = random.integers(0, len(sentences), 2 * TURNS * (share // 60 + 1)).tolist()
    pieces = len(picked) // (2 * TURNS)
    texts = [
        "".join(
            sentences[number] for number in picked[part * pieces : (part + 1) * pieces]
        )[:share]
        for part in range(2 * TURNS)
    ]
    if index % RARE_EVERY == 0:
        texts[3] = f"{texts[3][: share // 2]}{RARE}{texts[3][share // 2 :]}"
    turns = []
    for number in range(TURNS):
        observed, text = texts[2 * number], texts[2 * number + 1]
        role = "tool" if number else "user"
        turns.append(
            {
                "index": number,
                "parent": number - 1 if number else None,
                "sequence": 0,
                "agent": "main",
                "context": [{"kind": 0, "num_tokens": tokens // (2 * TURNS)}],
                "completion": [
                    {"kind": 1, "num_tokens": tokens // (2 * TURNS), "policy_version": 0}
                ],
                "text": text,
                "message": {"role": "assistant", "content": text},
                "observed": [{"role": role, "content": observed}],
                "images": [],
                "calls": [],
                "rewards": {},
                "timings": {},
                "info": {},
                "sampling": None,
                "finish_reason": "stop",
            }
        )
    task_id = f"{index // GROUP_SIZE}-{index % GROUP_SIZE}-0"
    task = {"id": task_id, "messages": [{"role": "user", "content": texts[0]}]}
    return {
        "id": task_id,
        "prompt": texts[0],
        "final_text": texts[-1],
        "turns": json.dumps(turns, separators=(",", ":")),
        "task": json.dumps(task, separators=(",", ":")),
        "timings": "{}",
        "info": "{}",
        "reasons": "{}",
        "first_state": "null",
        "last_observed": "[]",
        "last_info": "{}",
    }


def _arrays(
    random: np.random.Generator, count: int, tokens: int, step: int
) -> dict[str, pa.Array]:
    total = count * tokens
    offsets = np.arange(0, total + 1, tokens, dtype=np.int32)
    sampled = np.arange(total) % 2 == 1
    logprobs = np.where(sampled, -random.exponential(0.5, total), np.nan).astype(np.float32)
    flat = {
        "token_ids": ((random.zipf(1.2, total) - 1) % 50_000).astype(np.int32),
        "logprobs": logprobs,
        "policy_versions": np.where(sampled, step, -1).astype(np.int32),
        "turn_index": np.tile(
            np.repeat(np.arange(TURNS), -(-tokens // TURNS))[:tokens], count
        ),
        "kinds": sampled.astype(np.int8),
    }
    return {
        name: pa.ListArray.from_arrays(
            offsets, pa.array(values).cast(SCHEMA.field(name).type.value_type)
        )
        for name, values in flat.items()
        if name in SCHEMA.names
    }


def _column(field: pa.Field, values: Any) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    return pa.array(values).cast(field.type)


def _write_ledger(run: RunDirectory, bounds: np.ndarray[Any, Any]) -> None:
    lines: list[str] = []
    for step in range(len(bounds) - 1):
        for group in range(
            int(bounds[step]) // GROUP_SIZE, int(bounds[step + 1]) // GROUP_SIZE
        ):
            rollouts = list(range(GROUP_SIZE))
            place = {
                "attempt": 0,
                "policy": "main",
                "group_index": group,
                "rollout_indices": rollouts,
            }
            for to in ("running", "finished", "buffered", "taken", "trained"):
                detail = {"step": step} if to == "trained" else {}
                lines.append(json.dumps({"n": len(lines), **place, "to": to, **detail}))
    run.ledger_path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
