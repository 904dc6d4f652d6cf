"""Page: a trajectory's tokens in Chromium: painted, coloured anew and scrolled."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Page

from agentrl.store import Annotation, RunDirectory, TrajectoryWriter
from agentrl.types import Segment, SegmentKind, Status, Task, Trajectory, Turn
from benchmarks.figures import Figures
from benchmarks.viewers.browser import VIEW, chromium
from benchmarks.viewers.server import viewing
from benchmarks.viewers.vocabulary import keep_tokenizer

__all__ = ["measure"]

PAINTED_MS = {32_000: 150.0, 131_000: 400.0}
"""Target of the first paint in milliseconds, by the trajectory's tokens."""
REPEATS = 5
TURN_TOKENS = 2_000
VOCABULARY = 20_000
NOTE = (
    f"Page: Debian's Chromium, headless, {VIEW['width']} x {VIEW['height']}. Painted: from the "
    "answer of the server to the end of the first frame with tokens. Clicked: from a link to that "
    f"frame, server included. Both are medians of {REPEATS}. Coloured anew: the slowest of all "
    "columns, each for the first time. Frames: 300 of 300 pixels each, then 60 leaps through all."
)

PAINT = """async (id) => {
    const { get, ofRun } = await import("/lib/api.js");
    const { TokenModel } = await import("/trajectory/token_model.js");
    const { TokenBlocks } = await import("/trajectory/tokens/blocks.js");
    const { paintLevels } = await import("/trajectory/tokens/palette.js");
    const answer = await get(ofRun(location.hash.split("/")[2], "tokens"), { id });
    const pane = document.createElement("div");
    pane.className = "tok-pane";
    Object.assign(pane.style, { position: "fixed", inset: "0", zIndex: "99" });
    document.body.append(pane);
    await painted();
    const start = performance.now();
    const model = new TokenModel(answer);
    const blocks = new TokenBlocks(pane, { hover() {}, pick() {}, head: (turn) => `turn ${turn}` });
    blocks.show(model, null, paintLevels(model.columns.get("kind")));
    await painted();
    const paint = performance.now() - start;
    let recolour = 0;
    for (const name of model.signals) {
        const begin = performance.now();
        blocks.dressAll(paintLevels(model.columns.get(name)), () => false, [-1, -1]);
        await painted();
        recolour = Math.max(recolour, performance.now() - begin);
    }
    blocks.close();
    pane.remove();
    return [paint, recolour];
    function painted() {
        return new Promise((done) => requestAnimationFrame(() => {
            const channel = new MessageChannel(); // a task after the frame's own work
            channel.port1.onmessage = done;
            channel.port2.postMessage(0);
        }));
    }
}"""

CLICK = """async (id) => {
    const start = performance.now();
    location.hash = `#/run/${location.hash.split("/")[2]}/trajectory/${id}?tab=tokens`;
    const named = () => document.querySelector("h1")?.textContent === id;
    while (!named() || !document.querySelector(".tok-text span")) {
        await new Promise(requestAnimationFrame);
    }
    await new Promise(requestAnimationFrame);
    return performance.now() - start;
}"""

SCROLL = """async () => {
    const pane = document.querySelector(".tok-pane");
    const frames = [];
    let nodes = 0;
    let last = await new Promise(requestAnimationFrame);
    const step = async (top) => {
        pane.scrollTop = top;
        const now = await new Promise(requestAnimationFrame);
        frames.push(now - last);
        last = now;
        nodes = Math.max(nodes, document.getElementsByTagName("*").length);
    };
    for (let frame = 0; frame < 300; frame++) await step(frame * 300);
    for (let leap = 0; leap < 60; leap++) await step((pane.scrollHeight * ((leap * 37) % 60)) / 60);
    return [frames, nodes];
}"""


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Adds the figures of the token view."""
    with (
        tempfile.TemporaryDirectory() as folder,
        _shown(Path(folder), arguments.seed) as page,
    ):
        for place, (tokens, target_ms) in enumerate(PAINTED_MS.items(), 1):
            name = f"{tokens:,} tokens"
            own = f"{place}-0-0"
            rounds = [page.evaluate(PAINT, own) for _ in range(REPEATS)]
            painted, recoloured = np.median(rounds, axis=0).tolist()
            figures.at_most(f"{name} painted", painted, "ms", target_ms)
            _bounded(figures, tokens, f"{name} coloured anew", recoloured, 60)
            clicks = []
            for _ in range(REPEATS):
                page.evaluate(CLICK, "0-0-0")
                page.reload()  # nothing is kept from the time before
                page.wait_for_selector(".tok-text span")
                clicks.append(page.evaluate(CLICK, own))
            clicked = float(np.median(clicks))
            _bounded(figures, tokens, f"{name} clicked to painted", clicked, 500)
            frames, nodes = page.evaluate(SCROLL)
            figures.at_most(
                f"{name} scrolled, frame p95", np.percentile(frames, 95), "ms", 34
            )
            figures.at_most(f"{name} scrolled, longest frame", max(frames), "ms", 100)
            figures.at_most(f"{name} scrolled, live nodes", nodes, "", 2000)
    figures.note(NOTE)


def _bounded(
    figures: Figures, tokens: int, name: str, value: float, target_ms: float
) -> None:
    """Milliseconds with a target for the usual length, reported for the longer one."""
    if tokens == min(PAINTED_MS):
        figures.at_most(name, value, "ms", target_ms)
    else:
        figures.report(name, value, "ms")


@contextmanager
def _shown(folder: Path, seed: int) -> Iterator[Page]:
    """A page on the tokens of a small trajectory."""
    _write(folder / "run", seed)
    with viewing(folder / "run", folder / "cache") as viewer, chromium() as browser:
        page = browser.new_page()
        page.goto(viewer.link("/trajectory/0-0-0?tab=tokens"))
        page.wait_for_selector(".tok-text span")
        yield page


def _write(folder: Path, seed: int) -> None:
    """A sealed run with a trajectory of each length, annotated, and its tokenizer."""
    random = np.random.default_rng(seed)
    run = RunDirectory.create(folder, {"seed": seed})
    keep_tokenizer(run, random, VOCABULARY)
    with TrajectoryWriter(run) as writer:
        for group, tokens in enumerate((500, *PAINTED_MS)):
            trajectory = _trajectory(random, group, tokens)
            writer.write(trajectory, 1)
            writer.annotate(_annotation(random, trajectory))
        writer.seal(1)


def _trajectory(random: np.random.Generator, group: int, tokens: int) -> Trajectory:
    turns: list[Turn] = []
    left = tokens
    while left > 0:
        size = min(left, TURN_TOKENS)
        left -= size
        turns.append(_turn(random, len(turns), size))
    task = Task(f"task-{group}", ({"role": "user", "content": "Go on."},))
    return Trajectory(
        task,
        group,
        0,
        0,
        "train",
        tuple(turns),
        Status("terminated"),
        {"correct": 1.0},
        1.0,
    )


def _turn(random: np.random.Generator, index: int, size: int) -> Turn:
    context = size // 4
    ids = random.integers(0, VOCABULARY, size).astype(np.int32)
    logprobs = -random.exponential(0.5, size - context).astype(np.float32)
    kind = SegmentKind.OBSERVATION if index else SegmentKind.PROMPT
    return Turn(
        index,
        index - 1 if index else None,
        (Segment(kind, ids[:context]),),
        (Segment(SegmentKind.POLICY, ids[context:], logprobs, index % 3),),
        "words",
        {"role": "assistant", "content": "words"},
    )


def _annotation(random: np.random.Generator, trajectory: Trajectory) -> Annotation:
    """What training learned of it, at the full detail."""
    size = trajectory.num_policy_tokens

    def normal(scale: float) -> Any:
        return random.normal(0, scale, size).astype(np.float32)

    arrays = {
        "old_logprobs": -np.abs(normal(0.5)),
        "advantages": normal(1.0),
        "loss_weight": np.full(size, 1 / size, np.float32),
        "ratio": np.exp(normal(0.1)),
        "token_loss": normal(1.0),
        "entropy": np.abs(normal(1.0)),
        "ref_logprobs": -np.abs(normal(0.5)),
    }
    return Annotation(trajectory.id, step=1, values={"trained_step": 1}, arrays=arrays)
