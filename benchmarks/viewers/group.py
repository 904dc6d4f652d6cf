"""Group: sixteen rollouts of one task aligned token by token in Chromium."""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from playwright.sync_api import Page

from agentrl.store import RunDirectory, TrajectoryWriter
from agentrl.types import Segment, SegmentKind, Status, Task, Trajectory, Turn
from benchmarks.figures import Figures
from benchmarks.viewers.browser import chromium
from benchmarks.viewers.server import Viewer, viewing
from benchmarks.viewers.vocabulary import keep_tokenizer

__all__ = ["measure"]

ROLLOUTS = 16
TOKENS = 8_000
TURNS = 8
VOCABULARY = 20_000
REPEATS = 5
CHANGED = 0.05
"""The share of a related rollout's sampled tokens that are put in, left out or other ones."""
GROUPS = {"related": 0, "unrelated": 1}
NOTE = (
    f"Group: {ROLLOUTS} rollouts of {TOKENS:,} tokens in {TURNS} turns, half of them sampled, in "
    f"Chromium. Related: {CHANGED:.0%} of what the first one sampled is put in, left out or "
    "another token. Unrelated: the prompt alone is shared. Aligned: from the message to the worker "
    "to its answer, its start included. Opened: from a link to the frame with the alignment, "
    f"server included. Medians of {REPEATS}."
)

ALIGN = """async ([key, group]) => {
    const { get, ofRun } = await import("/lib/api.js");
    const { sequenceOf } = await import("/pages/group.js");
    const answer = await get(ofRun(key, "group"), { group_index: group });
    const sequences = answer.rows.map((row) => sequenceOf(row, answer.tokens[row.id]));
    const plain = sequences.map(({ ids, kinds, turn }) => ({ ids, kinds, turn }));
    const start = performance.now();
    const worker = new Worker("/workers/align.js", { type: "module" });
    const data = await new Promise((done) => {
        worker.onmessage = (message) => done(message.data);
        worker.postMessage({ number: 0, sequences: plain, reference: 0 });
    });
    const ms = performance.now() - start;
    worker.terminate();
    if (data.error) throw new Error(data.error);
    return [ms, data.alignment.rows.length];
}"""

OPEN = """async ([key, group]) => {
    const start = performance.now();
    location.hash = `#/run/${key}/group/${group}`;
    const named = () => document.querySelector("h1")?.textContent === `Group ${group}`;
    while (!named() || !document.querySelector(".alignment .look")) {
        await new Promise(requestAnimationFrame);
    }
    await new Promise(requestAnimationFrame);
    return performance.now() - start;
}"""


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Adds the figures of a group."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        _write(run, arguments.seed)
        with viewing(run, Path(folder) / "cache") as viewer, chromium() as browser:
            page = browser.new_page()
            for name, group in GROUPS.items():
                _measure_one(figures, viewer, page, name, group)
    figures.note(NOTE)


def _measure_one(
    figures: Figures, viewer: Viewer, page: Page, name: str, group: int
) -> None:
    asked = [viewer.page.rpartition("/")[2], group]
    opened, aligned = [], []
    for _ in range(REPEATS):
        page.goto("about:blank")  # nothing is kept from the time before
        page.goto(viewer.link("/trajectories"))
        page.wait_for_selector(".grid-body [role=row] a")
        opened.append(page.evaluate(OPEN, asked))
        ms, rows = page.evaluate(ALIGN, asked)
        if rows != ROLLOUTS:
            raise RuntimeError(f"{ROLLOUTS} rollouts must be aligned, got {rows}")
        aligned.append(ms)
    what = f"{ROLLOUTS} {name} rollouts of {TOKENS:,} tokens"
    figures.at_most(f"{what} aligned", np.median(aligned), "ms", 500)
    figures.report(f"{what} opened to painted", np.median(opened), "ms")


def _write(folder: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    run = RunDirectory.create(folder, {"seed": seed})
    keep_tokenizer(run, random, VOCABULARY)
    with TrajectoryWriter(run) as writer:
        for name, group in GROUPS.items():
            first = _trajectory(random, group)
            for rollout in range(ROLLOUTS):
                if rollout == 0:
                    one = first
                elif name == "related":
                    one = _related(random, first)
                else:
                    one = _unrelated(random, first)
                writer.write(replace(one, rollout_index=rollout), 1)
        writer.seal(1)


def _trajectory(random: np.random.Generator, group: int) -> Trajectory:
    half = TOKENS // TURNS // 2
    turns = []
    for index in range(TURNS):
        kind = SegmentKind.OBSERVATION if index else SegmentKind.PROMPT
        turns.append(
            Turn(
                index,
                index - 1 if index else None,
                (Segment(kind, _ids(random, half)),),
                (_sampled(random, _ids(random, half)),),
                "words",
                {"role": "assistant", "content": "words"},
            )
        )
    task = Task(f"task-{group}", ({"role": "user", "content": "Go on."},))
    return Trajectory(
        task, group, 0, 0, "train", tuple(turns), Status("terminated"), {}, 1.0
    )


def _related(random: np.random.Generator, one: Trajectory) -> Trajectory:
    return replace(one, turns=tuple(_edited(random, turn) for turn in one.turns))


def _edited(random: np.random.Generator, turn: Turn) -> Turn:
    """A turn that sampled a little otherwise, as many tokens."""
    (old,) = turn.completion
    size = old.token_ids.size
    ids = old.token_ids.copy()
    places = random.choice(size, int(size * CHANGED), replace=False)
    for place in sorted(places.tolist(), reverse=True):
        new = _ids(random, 1)
        how = random.integers(3)
        if how == 0:
            ids = np.insert(ids, place, new)
        elif how == 1:
            ids = np.delete(ids, place)
        else:
            ids[place] = new[0]
    ids = np.concatenate([ids, _ids(random, size)])[:size]
    return replace(turn, completion=(_sampled(random, ids),))


def _unrelated(random: np.random.Generator, one: Trajectory) -> Trajectory:
    other = _trajectory(random, one.group_index)
    first = replace(other.turns[0], context=one.turns[0].context)
    return replace(other, turns=(first, *other.turns[1:]))


def _sampled(random: np.random.Generator, ids: np.ndarray) -> Segment:
    logprobs = -random.exponential(0.5, ids.size).astype(np.float32)
    return Segment(SegmentKind.POLICY, ids, logprobs, 1)


def _ids(random: np.random.Generator, size: int) -> np.ndarray:
    return ((random.zipf(1.2, size) - 1) % VOCABULARY).astype(np.int32)
