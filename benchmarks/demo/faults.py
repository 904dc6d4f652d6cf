"""Faults: what is planted into the demo's run, each by a function that says where it is."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from agentrl.render import Piece, PieceEncoder, Source
from agentrl.types import Blob, ToolResult, Trajectory
from benchmarks.demo.planted import PlantedFault
from benchmarks.demo.recorded_run import STAGE, RecordedRun, with_observation

PHRASE = "let me check that again : "
MISMATCH_STEP = 9
LOSS_STEP = 11
TOOL_STEP = 12
PHRASE_STEP = 11
"""The phrase appears in this step and those after it."""

Fault = Callable[[RecordedRun, Tokenizer], PlantedFault]


def mismatched_token(run: RecordedRun, tokenizer: Tokenizer) -> PlantedFault:
    """The sampler's logprob of one token is 6 nats below the trainer's."""
    chosen = max(
        run.trained(MISMATCH_STEP), key=lambda i: run.trajectories[i].num_policy_tokens
    )
    (segment,) = run.trajectories[chosen].turns[0].completion
    assert segment.logprobs is not None
    place = len(segment) // 2
    trainer = float(run.annotations[chosen][-1].arrays["old_logprobs"][place])
    logprobs = segment.logprobs.copy()
    before = abs(trainer - float(logprobs[place]))
    logprobs[place] = trainer - 6.0
    run.change_turn(chosen, 0, completion=(replace(segment, logprobs=logprobs),))
    row = run.row(MISMATCH_STEP)
    after = abs(trainer - float(logprobs[place]))
    row["mismatch/logp_abs/max"] = after
    row["mismatch/logp_abs/mean"] += (after - before) / run.num_trained(MISMATCH_STEP)
    token = place + sum(len(one) for one in run.trajectories[chosen].turns[0].context)
    link = {"id": chosen, "tab": "tokens", "turn": 0, "tokens": f"{token}-{token}"}
    return PlantedFault(
        "mismatched token",
        f"step {MISMATCH_STEP}: the sampler gave one token 6 nats less than the trainer",
        {"page": "trajectory", **link},
    )


def costly_token(run: RecordedRun, tokenizer: Tokenizer) -> PlantedFault:
    """One token carries most of a step's loss."""
    chosen = min(run.trained(LOSS_STEP))
    annotation = run.annotations[chosen][-1]
    place = int(np.flatnonzero(annotation.arrays["loss_reason"] == 0)[-2])
    weight = float(annotation.arrays["loss_weight"][place])
    loss = float(np.float32(3.0 / weight))
    before = run.annotate(chosen, "token_loss", place, loss)
    run.row(LOSS_STEP)["policy/loss"] += weight * (loss - before)
    link = {"step": LOSS_STEP, "signal": "loss", "level": "token"}
    return PlantedFault(
        "costly token",
        f"step {LOSS_STEP}: one token carries a loss of 3",
        {"page": "blame", "id": chosen, **link},
    )


def appearing_phrase(run: RecordedRun, tokenizer: Tokenizer) -> PlantedFault:
    """Two answers in five begin with a phrase that nobody said before."""
    ids = tokenizer.encode(PHRASE, add_special_tokens=False).ids
    for step in range(PHRASE_STEP, max(run.steps.values()) + 1):
        for trajectory_id in run.played(step):
            trajectory = run.trajectories[trajectory_id]
            last = trajectory.turns[-1]
            if (
                last.calls
                or len(last.completion) != 1
                or zlib.crc32(trajectory_id.encode()) % 5 > 1
            ):
                continue
            run.splice(trajectory_id, last.index, 0, 0, ids)
            text = PHRASE + last.text
            message = {**last.message, "content": PHRASE + str(last.message["content"])}
            run.change_turn(trajectory_id, last.index, text=text, message=message)
    last_step = max(row["step"] for row in run.metrics if row["stage"] == STAGE)
    return PlantedFault(
        "appearing phrase",
        f"from step {PHRASE_STEP} on, answers begin with {PHRASE.strip()!r}",
        {
            "page": "behaviour",
            "a": f"1..{PHRASE_STEP - 1}",
            "b": f"{PHRASE_STEP}..{last_step}",
        },
    )


def failing_tool(run: RecordedRun, tokenizer: Tokenizer) -> PlantedFault:
    """In one step, half of the tool's calls time out."""
    told = "timeout: the code ran longer than 5 s"
    calls = errors = 0
    for number, trajectory_id in enumerate(run.played(TOOL_STEP)):
        trajectory = run.trajectories[trajectory_id]
        for turn in trajectory.turns[:-1]:
            results = [call.result for call in turn.calls if call.call and call.result]
            calls += len(results)
            if number % 2 or len(results) != 1 or not _one_answer(trajectory, turn.index):
                errors += sum(result.error is not None for result in results)
                continue
            errors += 1
            failed = replace(results[0], content=told, error="timeout", latency_s=5.0)
            _answer(run, tokenizer, trajectory_id, turn.index, failed)
    run.row(TOOL_STEP)["tool/python/error_frac"] = errors / max(1, calls)
    query = f"step:{TOOL_STEP} tool:python tool_errors>=1"
    return PlantedFault(
        "failing tool",
        f"step {TOOL_STEP}: half of the calls of python time out",
        {"page": "trajectories", "query": query},
    )


def marker_in_output(run: RecordedRun, tokenizer: Tokenizer) -> PlantedFault:
    """A tool's output spells a marker of the chat template."""
    chosen = _answered(run, 5)
    (call,) = run.trajectories[chosen].turns[0].calls
    assert call.result is not None
    result = replace(call.result, content=f"{call.result.content}<|im_end|>")
    _answer(run, tokenizer, chosen, 0, result)
    return PlantedFault(
        "marker in a tool's output",
        "a tool wrote out <|im_end|>, which text sent anew would turn into the token",
        {"page": "trajectory", "id": chosen, "tab": "retokenise", "turn": 1},
    )


def other_split(run: RecordedRun, tokenizer: Tokenizer) -> PlantedFault:
    """The policy sampled a word in pieces that its tokenizer would not choose."""
    # of a group that was not trained, so that no part of a loss goes
    untrained = (
        step for step in range(6, PHRASE_STEP) if _answered(run, step, trained=False)
    )
    chosen = _answered(run, next(untrained), trained=False)
    (segment,) = run.trajectories[chosen].turns[0].completion
    place, pieces = next(
        (place, [i for letter in text for i in tokenizer.encode(letter).ids])
        for place, text in enumerate(map(tokenizer.id_to_token, segment.token_ids.tolist()))
        if text == "print"
    )
    run.splice(chosen, 0, place, 1, pieces)
    return PlantedFault(
        "another split",
        "the policy sampled print letter by letter",
        {"page": "trajectory", "id": chosen, "tab": "retokenise", "turn": 0},
    )


def judged_answer(run: RecordedRun, tokenizer: Tokenizer) -> PlantedFault:
    """A judge gives the full reward to a wrong answer, and says why."""
    chosen = next(i for i in run.played(7) if run.trajectories[i].reward == 0.0)
    trajectory = run.trajectories[chosen]
    why = {
        "prompt": f"Is {trajectory.turns[-1].text!r} the answer to: "
        f"{trajectory.task.messages[0]['content']}",
        "answer": "The assistant sounds sure of itself. Verdict: correct.",
        "verdict": 1.0,
    }
    run.trajectories[chosen] = replace(
        trajectory, reasons={"judge": why}, rewards={**trajectory.rewards, "judge": 1.0}
    )
    return PlantedFault(
        "judge's reason",
        "a judge praised a wrong answer for how sure it sounds",
        {"page": "trajectory", "id": chosen, "tab": "judging"},
    )


def changed_state(run: RecordedRun, tokenizer: Tokenizer) -> PlantedFault:
    """The state of an episode changes where it should not: a file is deleted in the last turn."""
    chosen = _answered(run, 8)
    trajectory = run.trajectories[chosen]
    notes = Blob.of(b"half is done\n")
    states = [{"calls_left": 3 - turn.index, "solved": False} for turn in trajectory.turns]
    for turn in trajectory.turns:
        last = turn.index == len(trajectory.turns) - 1
        run.change_turn(
            chosen,
            turn.index,
            state=_state(states[turn.index]),
            files={"notes.txt": None if last else notes} if turn.index == 0 or last else {},
        )
    first = _state({"calls_left": 4, "solved": False})
    run.trajectories[chosen] = replace(run.trajectories[chosen], first_state=first)
    return PlantedFault(
        "changed state",
        "notes.txt is written in the first turn and deleted in the last",
        {"page": "trajectory", "id": chosen, "tab": "state"},
    )


def newest_alert(run: RecordedRun, tokenizer: Tokenizer) -> PlantedFault:
    """The last alert is about one trajectory, whose call timed out."""
    chosen = next(i for i in run.played(TOOL_STEP) if _timed_out(run.trajectories[i]))
    run.events.append(
        {
            "time": run.row(TOOL_STEP)["time"],
            "level": "warning",
            "event": "episodes_failed",
            "boundary": "tool",
            "message": f"step {TOOL_STEP}: half of the calls of python timed out",
            "step": TOOL_STEP,
            "trajectory": chosen,
        }
    )
    return PlantedFault(
        "alert",
        "the newest alert leads to its evidence",
        {"page": "trajectory", "id": chosen},
    )


def dropped_group(run: RecordedRun, tokenizer: Tokenizer) -> PlantedFault:
    """A group whose rewards are all equal was not trained; the run has such groups of its own."""
    rows = [json.loads(line) for line in run.texts["ledger.jsonl"].splitlines()]
    dropped = next(row for row in rows if row["to"] == "dropped")
    index = dropped.get("group_index", dropped.get("group_index"))
    return PlantedFault(
        "dropped group",
        f"group {index} was not trained: {dropped['reason']}",
        {"page": "group", "group_index": index, "stage": STAGE, "label": ""},
    )


FAULTS: tuple[Fault, ...] = (
    mismatched_token,
    costly_token,
    appearing_phrase,
    failing_tool,
    marker_in_output,
    other_split,
    judged_answer,
    changed_state,
    newest_alert,
    dropped_group,
)


def _answered(run: RecordedRun, step: int, *, trained: bool = True) -> str:
    """A trajectory of a step whose first turn calls python once, and whose second has the answer;
    empty where there is none.
    """
    return next(
        (
            trajectory_id
            for trajectory_id in run.played(step)
            if len(run.trajectories[trajectory_id].turns) >= 2
            and _one_answer(run.trajectories[trajectory_id], 0)
            and _went_well(run.trajectories[trajectory_id])
            and bool(run.annotations[trajectory_id]) == trained
        ),
        "",
    )


def _timed_out(trajectory: Trajectory) -> bool:
    results = [call.result for turn in trajectory.turns for call in turn.calls]
    return any(result is not None and result.error == "timeout" for result in results)


def _went_well(trajectory: Trajectory) -> bool:
    result = trajectory.turns[0].calls[0].result
    return result is not None and result.error is None


def _one_answer(trajectory: Trajectory, turn: int) -> bool:
    """Whether the turn's one call is answered by the next turn's one OBSERVATION segment."""
    after = trajectory.turns[turn + 1]
    kinds = [segment.kind.name for segment in after.context]
    return (
        len(trajectory.turns[turn].calls) == 1
        and len(after.observed) == 1
        and kinds.count("OBSERVATION") == 1
        and len(trajectory.turns[turn].completion) == 1
    )


def _answer(
    run: RecordedRun,
    tokenizer: Tokenizer,
    trajectory_id: str,
    turn: int,
    result: ToolResult,
) -> None:
    """Gives a call another result, and the next turn its text and ids."""
    encoder = PieceEncoder(tokenizer, ())
    ids, _ = encoder.encode([Piece(result.content, Source.CONTENT)])
    trajectory = run.trajectories[trajectory_id]
    (call,) = trajectory.turns[turn].calls
    run.change_turn(trajectory_id, turn, calls=(replace(call, result=result),))
    after = trajectory.turns[turn + 1]
    observed: tuple[Any, ...] = ({**after.observed[0], "content": result.content},)
    context = with_observation(after.context, ids)
    run.change_turn(trajectory_id, turn + 1, observed=observed, context=context)


def _state(value: dict[str, Any]) -> Blob:
    return Blob.of(json.dumps(value, sort_keys=True).encode())
