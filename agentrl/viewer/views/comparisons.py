"""Comparisons: groups, tasks, pairs, ranges of steps, and who carries a step's numbers.

Each reads what it needs of a run under the run's lock, and computes without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any

import numpy as np
from fastapi import Query

from agentrl.errors import DataError
from agentrl.guards.parsing import parse_json
from agentrl.types import Trajectory
from agentrl.viewer.analysis.behaviour import behaviour
from agentrl.viewer.analysis.blame import (
    Blame,
    BlameRow,
    Decode,
    Level,
    NotRecordedError,
    Signal,
    blame,
    logged_value,
    trained_tokens,
)
from agentrl.viewer.analysis.retokenise import retokenise
from agentrl.viewer.analysis.side_by_side import group_view, task_view, turn_diff
from agentrl.viewer.analysis.stored_rows import Episode, read_episodes, stored_rows
from agentrl.viewer.analysis.tasks import new_calls, task_changes
from agentrl.viewer.index import Place
from agentrl.viewer.index.query import term
from agentrl.viewer.pieces import HIDDEN, HIDDEN_PIECE, REDACTED_ID, has_marks
from agentrl.viewer.runs.open_run import OpenRun
from agentrl.viewer.runs.stored_row import StoredRow
from agentrl.viewer.template import ChatTemplateText
from agentrl.viewer.viewer_error import ViewerError, bad_request, not_found
from agentrl.viewer.views.token_view import pieces_of
from agentrl.viewer.wire import packed

_MOST_TOKENS = 64
"""Rollouts of a group whose tokens are sent."""
_MOST_EPISODES = 20_000
_MOST_BETWEEN = 4000
"""Episodes between two ranges, an even share of them."""
_RANGE = re.compile(r"(\d{1,18})(?:\.\.(\d{1,18}))?")
Index = Annotated[int, Query(ge=0, lt=2**53)]


def group(
    run: OpenRun,
    group_index: Index,
    stage: str | None = None,
    label: str = "",
) -> dict[str, Any]:
    """The rollouts of one group of training or, where ``label`` names one, of an evaluation, with
    the tokens of the first 64.

    Raises:
        ViewerError: the run has no such group.
    """
    # an evaluation counts its groups from 0, as training does
    query = f"group:{group_index} {term('label', label)}"
    query += "" if stage is None else f" {term('stage', stage)}"
    rows = run.index().page(query, "rollout,attempt", limit=None).rows
    if not rows:
        raise not_found(
            f"the run {run.name} has no group {group_index} of this stage and label"
        )
    tokens = {}
    kept: list[StoredRow] = []
    for row in rows[:_MOST_TOKENS]:
        with run.lock:
            stored = run.row(row["id"])
            pieces, _ = pieces_of(run, stored, stored.arrays.token_ids, {})
        kept.append(stored)
        tokens[row["id"]] = {
            "ids": packed(stored.arrays.token_ids),
            "pieces": pieces,
            "kinds": packed(stored.arrays.kinds),
            "turn": packed(stored.arrays.turn_index),
            "sequence": packed(stored.sequences[stored.arrays.turn_index]),
        }
    return {**group_of_rows(rows, kept), "task": stored.json("task"), "tokens": tokens}


def group_of_rows(
    rows: Sequence[Mapping[str, Any]], kept: Sequence[StoredRow]
) -> dict[str, Any]:
    """A group as the API sends it, without its tokens.

    Args:
        rows: of the index.
        kept: the same trajectories as they are stored, or the first of them.
    """
    return group_view(
        rows,
        {one.columns["id"]: one.arrays for one in kept},
        [annotation for one in kept for annotation in one.annotations],
        {one.columns["id"]: [turn["agent"] for turn in one.turns] for one in kept},
    )


def task(run: OpenRun, task_id: str) -> dict[str, Any]:
    """One task over training.

    Raises:
        ViewerError: the run has no such task.
    """
    asked = term("task", task_id)
    rows = run.index().page(asked, "step", limit=None).rows if asked and task_id else []
    if not rows:
        raise not_found(f"the run {run.name} has no task {task_id[:100]!r}")
    return task_view(rows)


def diff(run: OpenRun, a: str, b: str) -> dict[str, Any]:
    """Two trajectories by their turns.

    Raises:
        ViewerError: the run lacks one of them.
    """
    with run.lock:
        one, other = run.trajectory(a), run.trajectory(b)
    return turn_diff(one, other)


def behaviour_view(
    run: OpenRun, a: str, b: str, query: str = "", stage: str | None = None
) -> dict[str, Any]:
    """What changed from the steps ``a`` to the steps ``b``, of the trajectories of a query; of one
    stage, or of all where None.

    Raises:
        DataError: a range is none.
        QueryError: the query is none.
    """
    (a_first, a_last), (b_first, b_last) = _steps(a, "a"), _steps(b, "b")
    after, before = min(a_last, b_last) + 1, max(a_first, b_first) - 1
    asked = [(a, "a", _MOST_EPISODES), (b, "b", _MOST_EPISODES)]
    if after <= before:
        asked.append((f"{after}..{before}", "between", _MOST_BETWEEN))
    sides = []
    complete = True
    for text, name, most in asked:
        places = run.index().places(_within(text, name, query, stage), "step")
        stride = -(-len(places) // most) or 1
        complete &= stride == 1 or name == "between"
        sides.append(places[::stride])
    run.read_of = (0, sum(map(len, sides)))
    found = behaviour(*(_counted(run, places) for places in sides))
    return asdict(replace(found, complete=found.complete and complete))


def _counted(run: OpenRun, places: Sequence[Place]) -> Iterator[Episode]:
    for episode in read_episodes(run.directory, run.reader, places):
        read, of = run.read_of
        run.read_of = (read + 1, of)
        yield episode


def reading(run: OpenRun) -> dict[str, int]:
    """How far the comparison that was asked for last has come: trajectories ``read`` ``of`` all."""
    return dict(zip(("read", "of"), run.read_of, strict=True))


def tasks_view(
    run: OpenRun,
    a: str,
    b: str,
    query: str = "",
    solved: str | None = None,
    stage: str | None = None,
) -> dict[str, Any]:
    """What became of the tasks from the steps ``a`` to the steps ``b``, of the trajectories of a
    query (``task_changes``). What ``solved`` finds, another query, solved its task; by default the
    part ``correct`` of the reward decides, or where there is none the reward.

    A task that is solved at last names the episode that did it first, ``id``, its calls, and
    whether they are new: no episode of the task in a called so.

    Raises:
        DataError: a range is none.
        QueryError: a query is none.
    """
    (_, last_a), (first_b, _) = _steps(a, "a"), _steps(b, "b")
    if last_a >= first_b:
        raise DataError(f"the steps b must come after those of a, got a {a} and b {b}")
    before = f"0..{first_b - 1}"
    index = run.index()
    if solved is None:
        solved = (
            "reward.correct>=0.5" if "reward.correct" in index.fields() else "reward>=0.5"
        )
    asked = [_within(steps, name, query, stage) for steps, name in ((a, "a"), (b, "b"))]
    asked.append(_within(before, "b", query, stage))
    found = task_changes(*(index.by_task(one, solved) for one in asked))
    new = {row["task"]: row for row in found["new"]["rows"]}
    solving = " ".join(f"({one})" for one in (asked[1], solved) if one.strip())
    sides = []
    for one in (asked[0], solving) if new else ():
        places = [place for place in index.places(one, "step") if place.task in new]
        sides.append(read_episodes(run.directory, run.reader, places[:_MOST_EPISODES]))
    for task_id, told in new_calls(*sides).items() if new else ():
        new[task_id] |= dict(zip(("id", "calls", "new_calls"), told, strict=True))
    return {**found, "solved": solved}


def _within(steps: str, name: str, query: str, stage: str | None) -> str:
    """The trajectories of a query that ended in these steps, of one stage or of all, as a query."""
    first, last = _steps(steps, name)
    found = f"step:{first}..{last}" + (f" ({query})" if query.strip() else "")
    return found + ("" if stage is None else f" {term('stage', stage)}")


def _steps(text: str, name: str) -> tuple[int, int]:
    """A step or a range of steps as an address has it, such as ``10..20``."""
    match = _RANGE.fullmatch(text.strip())
    first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
    if int(first) > int(last):
        raise DataError(
            f"{name} must be a step or a range of steps such as 10..20, got {text!r}"
        )
    return int(first), int(last)


def blame_of_step(
    run: OpenRun,
    step: int,
    signal: Signal,
    level: Level,
    *,
    stage: str | None = None,
    limit: int = 100,
) -> Blame:
    """Who carries a number of a step.

    Args:
        run: the run.
        step: the step that trained them.
        signal, level: as ``blame`` has them.
        stage: whose step; any where None.
        limit: the most rows.

    Raises:
        NotRecordedError: the run did not record what it takes.
        DataError: the signal or level is unknown.
        StoreError: a file is damaged.
    """
    with run.lock:
        run.metrics.refresh()
        logged = logged_value(_logged(run, step, stage), signal)
        learned = list(run.reader.annotations(step=step, stage=stage))
        decode = _decode(run, stage)
        kept = kept_of_step(run, step, stage)
    trained = {one.trajectory_id for one in learned if one.arrays}
    if not trained and kept:
        raise DataError(
            f"store.keep left {kept[0]} of {kept[1]} trajectories of step {step} and none that it "
            "trained; store.keep.every_steps keeps whole steps"
        )
    if not trained:
        raise NotRecordedError(
            f"no token of step {step} was annotated; store.detail: tokens records what blame needs "
            "of each token that a step trains"
        )
    places = places_of(run, step, trained)
    found = blame(
        trained_tokens(run.directory, run.reader, places, learned),
        signal,
        level,
        logged=logged,
        decode=decode,
        limit=limit,
    )
    return replace(found, rows=_without_secrets(run, found.rows, places))


def kept_of_step(run: OpenRun, step: int, stage: str | None) -> list[int] | None:
    """How many trajectories ``store.keep`` left of a step, and of how many, of every stage where
    None is named; None where all stay.
    """
    stages = run.reader.kept_by_stage().items()
    found = [own[step] for name, own in stages if stage in (None, name) and step in own]
    return [sum(counts) for counts in zip(*found, strict=True)] or None


def _without_secrets(
    run: OpenRun, rows: Sequence[BlameRow], places: Sequence[Place]
) -> tuple[BlameRow, ...]:
    """The rows; one of a turn that holds a masked secret has no text."""
    named = {row.id for row in rows}
    shown = [place for place in places if place.id in named]
    hidden: dict[str, set[int]] = {}
    for stored in stored_rows(run.directory, run.reader, shown, ("turns",)):
        if has_marks(stored):
            with run.lock:
                arrays = run.row(stored["id"]).arrays
            taken = arrays.token_ids == REDACTED_ID
            hidden[stored["id"]] = set(arrays.turn_index[taken].tolist())
    return tuple(
        replace(row, text=HIDDEN_PIECE, before="", after="")
        if row.turn in hidden.get(row.id, ())
        else row
        for row in rows
    )


def blame_view(
    run: OpenRun,
    step: Index,
    signal: Signal = "loss",
    level: Level = "token",
    stage: str | None = None,
) -> dict[str, Any]:
    """``blame_of_step`` as the API sends it; ``missing`` says what the run did not record."""
    try:
        found, missing = blame_of_step(run, step, signal, level, stage=stage), ""
    except NotRecordedError as error:
        found = Blame(signal, level, 0.0, None, 0, ())
        missing = f"{error}{run.setting_note('detail')}"
    with run.lock:
        # what store.keep dropped has no part
        kept = kept_of_step(run, step, stage)
    return {**asdict(found), "missing": missing, "kept": kept}


def retokenised(
    run: OpenRun,
    id: str,  # noqa: A002
    turn: Index | None = None,
) -> dict[str, Any]:
    """A turn's recorded ids against those of its text; without a turn, those of all turns.

    Raises:
        ViewerError: the run lacks the trajectory, or its tokenizer is not here.
        DataError: there is no such turn, or it has no ids.
    """
    with run.lock:
        if (run.row(id).arrays.token_ids == REDACTED_ID).any():
            raise not_found(f"its text is not encoded again: of some tokens, {HIDDEN}")
        trajectory = run.trajectory(id)
        stage = trajectory.stage
        try:
            tokenizer = run.pieces(stage).tokenizer
        except DataError as error:
            raise not_found(str(error)) from error
        template = _template(run, stage)
        tools = _offered_tools(run, trajectory)
    return asdict(retokenise(trajectory, turn, tokenizer, template, tools))


def places_of(run: OpenRun, step: int, trained: set[str]) -> list[Place]:
    """The trajectories that ``step`` trained: first those that finished then."""
    found: dict[str, Place] = {}
    for query in (f"step:{step}", f"step<{step}"):
        if len(found) < len(trained):
            found |= {own.id: own for own in run.index().places(query) if own.id in trained}
    return list(found.values())


def _logged(run: OpenRun, step: int, stage: str | None) -> dict[str, Any]:
    """A step's row of the metrics; of several stages the newest one's that has the step."""
    stages = run.metrics.stages
    rows = [own.row(step) for name, own in stages.items() if stage in (None, name)]
    return next((row for row in reversed(rows) if row), {})


def _decode(run: OpenRun, stage: str | None) -> Decode | None:
    try:
        pieces = run.pieces(stage or "")
    except DataError:
        # a run without its model: its rows then have no text
        return None
    return lambda ids: pieces.text(np.asarray(ids, dtype=np.int32))


def _offered_tools(run: OpenRun, trajectory: Trajectory) -> dict[str, bytes]:
    """What the run keeps of the tools on offer to a trajectory's turns, by hash."""
    named = {one.offered_tools.sha256 for one in trajectory.turns if one.offered_tools}
    kept = {}
    for sha256 in named - {""}:
        # too large to be kept
        try:
            kept[sha256] = run.blob(sha256)
        except ViewerError:
            # the comparison with the template says that they are missing
            continue
    return kept


def _template(run: OpenRun, stage: str) -> ChatTemplateText | None:
    """The chat template that the run keeps of a stage; None where it keeps none."""
    kept = run.directory.read_record().get("tokenizers") or {}
    own: Mapping[str, str] = kept.get(stage) or next(iter(kept.values()), {})
    if "chat_template.jinja" not in own:
        return None
    text = run.blob(own["chat_template.jinja"]).decode(errors="replace")
    config: Any = {}
    if "tokenizer_config.json" in own:
        try:
            config = parse_json(run.blob(own["tokenizer_config.json"]))
        except ValueError as error:
            raise bad_request(
                f"the run's tokenizer_config.json is no JSON: {error}"
            ) from error
    return ChatTemplateText.of_tokenizer(text, config if isinstance(config, dict) else {})
