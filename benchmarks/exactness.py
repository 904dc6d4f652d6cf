"""Exactness: how far the sampler's logprobs are from the trainer's, and what it costs to make them
equal (``python -m benchmarks.exactness``).

- ``torch``, ``sglang``: small random models of each family; the engine samples twelve episodes of
  three turns, and actors of several layouts compute the logprobs of the same tokens.
- ``generation``: the code example's model generates the same turns with and without
  ``run.deterministic``, in turn.
- ``code``: ``--steps`` steps of the code example with and without, in two processes side by side:
  the largest difference of all tokens, and processor time.

``--only`` measures some of them; ``--parts`` keeps their numbers in a folder and measures what is
not there yet. Once all but ``sglang`` are there the measured part of ``docs/exactness.md`` is
written.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pickle
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from agentrl.config import load_config
from agentrl.config.key_names import with_keys
from agentrl.engines import EnginePlace, ServedDtype
from agentrl.engines.sglang import SGLangEngine, SGLangEngineSpec
from agentrl.engines.sglang.environment import SGLANG
from agentrl.engines.torch import TorchEngine
from agentrl.errors import AgentRLError, ConfigError
from agentrl.types import Batch, GenerateRequest, SamplingParams
from benchmarks.figures import ROOT, Figure, Figures, add_arguments, machine
from benchmarks.step import CODE, Row, checkpoint, default_cache, scratch, train
from benchmarks.trainer.exactness_rank import FAR, Job
from benchmarks.trainer.ranks import run_ranks
from tests.tiny_models import write_family
from tests.training.sampled_batch import batch_of

PAGE = ROOT / "docs" / "exactness.md"
MEASURED = "## Measured\n"
"""What stands below it on the page is written here."""

FAMILIES = ("llama", "qwen2", "qwen3", "mixtral", "qwen3_moe")
ENGINES = ("torch", "sglang")
COSTS = ("generation", "code")
PARTS = (*ENGINES, *COSTS)
DTYPES: tuple[ServedDtype, ...] = ("float32", "bfloat16")
LAYOUTS = {
    "plain": ("plain", 1, 1),
    "fsdp2": ("fsdp2", 1, 1),
    "fsdp2, tp 2": ("fsdp2", 2, 1),
    "fsdp2, sp 2": ("fsdp2", 1, 2),
}
"""Backends, and ranks that hold a layer and a row together."""
GENERATION = 3.0
STEP = 2.5
COLD_STEPS = 1

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Line:
    """One row of the page.

    Args:
        found: numbers of ``exactness_rank``; None where the combination is refused.
        refused: why.
    """

    family: str
    engine: str
    dtype: str
    deterministic: bool
    layout: str
    found: Mapping[str, float] | None = None
    refused: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """Of the page's table; a dash where nothing tells a number."""
        mode = "yes" if self.deterministic else "no"
        head = (self.family, self.engine, self.dtype, self.layout, mode)
        if self.found is None:
            return (*head, "refused", *("–",) * 4)
        numbers = (f"{self.found[name]:.2g}" for name in ("max", "mean", "k3"))
        shares = (self.found["far"], self.found.get("experts"))
        return (*head, *numbers, *("–" if one is None else f"{one:.1%}" for one in shares))


def families(engine: str, folder: Path, python: str) -> list[Line]:
    """Every family, dtype, mode and layout beside an engine.

    Args:
        engine: of ``ENGINES``.
        folder: for models and what is sampled.
        python: of an environment with SGLang.
    """
    lines: list[Line] = []
    jobs: dict[Line, Job] = {}
    for family in FAMILIES:
        model = write_family(folder / family, family, vocab_size=96)
        for dtype, deterministic in product(DTYPES, (False, True)):
            case = (family, engine, dtype, deterministic)
            print(f"sampling: {case}", flush=True)
            place = EnginePlace(
                str(model),
                str(folder / "engine"),
                dtype=dtype,
                context_tokens=200,
                max_running=5,
                deterministic=deterministic,
            )
            try:
                if deterministic:
                    check(engine, ranks=1)
                batch = sample(place, engine, python)
            except AgentRLError as error:
                lines.append(Line(*case, "any", refused=with_keys(str(error))))
                continue
            settings: dict[str, Any] = {"dtype": dtype, "deterministic": deterministic}
            if dtype == "bfloat16":
                settings["head_dtype"] = "float32"
            for layout, (backend, tp, sp) in LAYOUTS.items():
                try:
                    if deterministic:
                        check(engine, ranks=tp * sp)
                except ConfigError as error:
                    lines.append(Line(*case, layout, refused=str(error)))
                    continue
                lines.append(Line(*case, layout))
                jobs[lines[-1]] = Job(str(model), batch, settings | {"backend": backend})
    found = compared(jobs, folder / "jobs")
    return [replace(line, found=found.get(line)) for line in lines]


def compared(jobs: Mapping[Line, Job], file: Path) -> dict[Line, dict[str, float]]:
    """The numbers of each line, by the ranks of its layout; ``file`` hands them their jobs."""
    found: dict[Line, dict[str, float]] = {}
    for layout, (_, tp, sp) in LAYOUTS.items():
        print(f"training: {layout}", flush=True)
        own = [line for line in jobs if line.layout == layout]
        file.write_bytes(pickle.dumps([jobs[line] for line in own]))
        module = "benchmarks.trainer.exactness_rank"
        answers, *_ = run_ranks(module, str(tp), str(sp), str(file), size=tp * sp)
        found |= zip(own, answers, strict=True)
    return found


def check(engine: str, *, ranks: int) -> None:
    """Asks whether a run may be deterministic with an engine and so many ranks.

    Raises:
        ConfigError: it may not.
    """
    settings = ["run.deterministic=true", f"rollout.engine={engine}", "placement.mode=ray"]
    load_config(CODE / "config.yaml", [*settings, f"placement.world_size={ranks}"])


def sample(place: EnginePlace, name: str, python: str) -> Batch:
    """What an engine samples.

    Raises:
        EngineError: it refuses the place.
    """
    engine: TorchEngine | SGLangEngine
    if name == "torch":
        engine = TorchEngine(place)
    else:
        engine = SGLangEngine(
            replace(place, kv_tokens=4096), SGLangEngineSpec(python=python)
        )
    try:
        return batch_of(engine)
    finally:
        engine.close()


def code(figures: Figures, model: Path, steps: int, seed: int) -> None:
    """The code example's own runs."""

    def run(folder: Path, exact: bool) -> list[Row]:
        return train(
            CODE / "config.yaml",
            folder / str(exact),
            *(f"model.path={model}", "stages.rl.eval.sets={}", f"run.seed={seed}"),
            *("placement.mode=inline", f"train.steps={steps + COLD_STEPS}"),
            f"run.deterministic={str(exact).lower()}",
        )

    modes = (False, True)
    with scratch() as folder, ThreadPoolExecutor(len(modes)) as both:
        ordinary, exact = both.map(partial(run, folder), modes)
    figures.report("code: steps of each mode", len(exact), "")
    for name, rows in (("deterministic", exact), ("ordinary", ordinary)):
        tokens = sum(one["count/trained_tokens"] for one in rows)
        figures.report(f"code: trained tokens, {name}", tokens, "")
        largest = max(float(one["mismatch/logp_abs/max"]) for one in rows)
        told = f"code: largest difference, {name}"
        if name == "deterministic":
            figures.at_most(told, largest, "nats", 0.0)
        else:
            figures.report(told, largest, "nats")
    ratio = _spent(exact) / _spent(ordinary)
    figures.at_most("code: processor time of a step's token", ratio, "x", STEP)


def _spent(rows: Sequence[Row]) -> float:
    """Processor seconds of a trained token, but for the first steps."""
    counted = rows[COLD_STEPS:]
    seconds = sum(float(one["driver_cpu_s"]) for one in counted)
    return seconds / sum(float(one["count/trained_tokens"]) for one in counted)


def generation(figures: Figures, model: Path) -> None:
    """The same turns of 128 episodes by both modes, in turn."""
    spent: dict[bool, list[float]] = {False: [], True: []}
    place = EnginePlace(str(model), context_tokens=448, max_running=64, num_threads=1)
    engines = {exact: TorchEngine(replace(place, deterministic=exact)) for exact in spent}
    try:
        for number in range(4):
            for exact, engine in engines.items():
                started = time.process_time()
                asyncio.run(_episodes(engine, number))
                spent[exact].append(time.process_time() - started)
    finally:
        for engine in engines.values():
            engine.close()
    ratios = [one / other for one, other in zip(spent[True], spent[False], strict=True)]
    figures.at_most("generation: processor time", median(ratios), "x", GENERATION)


async def _episodes(engine: TorchEngine, number: int) -> None:
    """16 groups of 8, of three turns: lengths as in the code example, whatever is sampled."""

    async def episode(group: int, rollout: int) -> None:
        rng = np.random.default_rng([number, group])
        ids = rng.integers(10, 400, 40 + group).astype(np.int32)
        for turn in range(3):
            length = 16 + (7 * rollout + 5 * turn + group) % 24
            name = f"{number}-{group}-{rollout}"
            params = SamplingParams(max_new_tokens=length, temperature=1.0)
            seed = 1000 * group + 10 * rollout + turn
            answer = await engine.generate(
                GenerateRequest(f"{name}-{turn}", name, ids, params, seed)
            )
            new = [segment.token_ids for segment in answer.segments]
            ids = np.concatenate([ids, *new, rng.integers(10, 400, 12)]).astype(np.int32)
        await engine.release(name)

    await asyncio.gather(
        *(episode(group, rollout) for group in range(16) for rollout in range(8))
    )


def page(lines: Sequence[Line], cost: Figures) -> str:
    """What stands below ``MEASURED``."""
    facts = machine()
    versions = facts["versions"]
    assert isinstance(versions, dict)
    columns = (
        *("family", "engine", "dtype", "layout", "deterministic"),
        *("max abs difference", "mean", "k3", f"over {FAR:g}", "experts differ"),
    )
    table = [columns, *(line.cells for line in lines)]
    refusals = dict.fromkeys(line.refused for line in lines if line.refused)
    seen = {line.engine for line in lines}
    costs = [("figure", "value", "target", "met")]
    for figure in cost.rows:
        met = {None: "", True: "yes", False: "**no**"}[figure.met]
        value = f"{figure.value:.4g} {figure.unit}".strip()
        costs.append((figure.name, value, figure.target or "", met))

    def rows(cells: Sequence[Sequence[str]]) -> str:
        head, *body = (f"| {' | '.join(row)} |" for row in cells)
        return "\n".join([head, f"|{'---|' * len(cells[0])}", *body])

    where = f"{facts['cpu']}, torch {versions['torch']}, transformers {versions['transformers']}"
    parts = [
        "`python -m benchmarks.exactness` makes what follows.",
        f"On {where}, one thread a process.",
        "### What it costs\n\n" + rows(costs),
        "### Families, dtypes and layouts\n\nRandom models of two layers of width 32; "
        "differences in nats. In bfloat16 the output layer is float32 on both sides "
        "(`model.head_dtype: float32`).",
        rows(table),
        "A dash in the last column: a dense model, an engine that tells no experts, or a row that "
        "several ranks hold together.",
        *(f"Not measured here: {one}." for one in ENGINES if one not in seen),
        "Refused:",
        "\n".join(f"- {one}" for one in refusals),
    ]
    return "\n" + "\n\n".join(parts) + "\n"


def measured(arguments: argparse.Namespace, part: str) -> Rows:
    """The numbers of a part, from the folder of ``--parts`` where they are there."""
    file = arguments.parts / f"{part}.json"
    if not file.is_file():
        figures = Figures()
        if part in ENGINES:
            with scratch() as folder:
                rows = [asdict(line) for line in families(part, folder, arguments.python)]
        else:
            model = checkpoint(arguments.cache, "code", CODE, seed=arguments.seed)
            if part == "code":
                code(figures, model, arguments.steps, arguments.seed)
            else:
                generation(figures, model)
            rows = figures.as_json()
        file.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return json.loads(file.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.exactness", description=__doc__
    )
    add_arguments(parser, benchmark="exactness")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="parts")
    parser.add_argument("--parts", type=Path, help="folder of parts that are measured")
    parser.add_argument(
        "--steps", type=int, default=20, help="of the code example in each mode"
    )
    parser.add_argument(
        "--cache", type=Path, default=default_cache(), help="warm-up checkpoints"
    )
    parser.add_argument("--seed", type=int, default=0)
    own = os.environ.get("AGENTRL_SGLANG_PYTHON") or SGLANG.python()
    parser.add_argument("--python", default=str(own), help="of an environment with SGLang")
    arguments = parser.parse_args(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with scratch() as folder:
        arguments.parts = arguments.parts or folder
        arguments.parts.mkdir(parents=True, exist_ok=True)
        found = {part: measured(arguments, part) for part in arguments.only}
    figures = Figures()
    lines = [Line(**row) for engine in ENGINES for row in found.get(engine, ())]
    for line in lines:
        if line.found is not None:
            mode = "deterministic" if line.deterministic else "ordinary"
            name = ", ".join((line.family, line.engine, line.dtype, line.layout, mode))
            figures.report(f"{name}: largest difference", line.found["max"], "nats")
    cost = Figures([Figure(**row) for part in COSTS for row in found.get(part, ())])
    figures.rows += cost.rows
    if found.keys() >= {"torch", *COSTS}:
        said, _, _ = PAGE.read_text(encoding="utf-8").partition(MEASURED)
        PAGE.write_text(said + MEASURED + page(lines, cost), encoding="utf-8")
    return figures.finish(arguments, seeds=[arguments.seed])


if __name__ == "__main__":
    raise SystemExit(main())
