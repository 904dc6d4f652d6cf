"""Fuzzed trajectories of every template variant: no token-consistency violation, no mask error, no
forged token.

The same harness with a part broken on purpose must name what is broken (benchmarks/fuzz_tokens.py
plays 10,000).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.engines.scripted import ScriptedEngine
from agentrl.envs import EnvSpec, Rubric
from agentrl.render import Piece, PieceEncoder, Renderer, Source
from agentrl.render.encode import Provenance
from agentrl.rollouts import (
    EpisodeContext,
    EpisodeKey,
    EpisodeSettings,
    RolloutSpec,
    run_episode,
)
from agentrl.tools import parser_for
from agentrl.types import Segment, SegmentKind, Task, Trajectory
from benchmarks.fuzz import (
    VARIANTS,
    Bookkeeper,
    FuzzedEnv,
    FuzzedModel,
    fuzz,
    mask_errors,
    token_mismatches,
)
from benchmarks.fuzz.renderers import built_variant
from tests.kit.marks import wide_but
from tests.rollouts.bytewise import Built, length_reward


@pytest.mark.parametrize("name", wide_but([*VARIANTS][::6], VARIANTS))
def test_fuzzed_trajectories_keep_every_account(name: str, tmp_path: Path) -> None:
    outcome = fuzz(VARIANTS[name], tmp_path, episodes=20, seed=7)
    assert outcome.trajectories == 20
    assert (outcome.mismatches, outcome.masks, outcome.forged, outcome.failed) == (
        [],
        [],
        [],
        [],
    )
    assert outcome.turns > 20
    assert outcome.sampled_tokens > 200


@pytest.mark.parametrize("name", ["qwen3_instruct", "llama3_1", "glm4moe"])
def test_a_renderer_that_lets_tools_write_markers_is_caught(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_encode = PieceEncoder.encode

    def trusting(self: PieceEncoder, pieces: Sequence[Piece]) -> Any:
        ids, _ = true_encode(self, [Piece(piece.text, Source.TEMPLATE) for piece in pieces])
        return ids, true_encode(self, pieces)[1][:1].repeat(ids.size)

    monkeypatch.setattr(PieceEncoder, "encode", trusting)
    assert any(
        "became that token" in fault
        for fault in fuzz(VARIANTS[name], tmp_path, episodes=20, seed=7).forged
    )


def test_a_template_that_sees_markers_in_what_tools_say_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # content goes through unquoted: deepseek's template splits what is said at </think>
    monkeypatch.setattr(Provenance, "content", lambda self, text: text)
    assert fuzz(VARIANTS["glm4moe"], tmp_path, episodes=20, seed=7).forged


class Played:
    """One true trajectory of several turns, with its books."""

    def __init__(self, folder: Path) -> None:
        variant = VARIANTS["qwen3_instruct"]
        renderer, tokenizer = built_variant(variant, folder)
        markers = sorted(tokenizer.get_added_vocab())
        model = FuzzedModel(renderer, markers, max_calls=2, thinks=False, seed=3)
        spec = RolloutSpec(
            env=EnvSpec(FuzzedEnv),
            renderer=Built(renderer),
            parser="auto",
            rubric=Built(Rubric([length_reward])),
            episode=EpisodeSettings(
                max_turns=6, max_turn_tokens=200, max_response_tokens=8000
            ),
            max_prompt_tokens=8000,
            root_seed=0,
        )
        for number in range(50):
            self.books = Bookkeeper(ScriptedEngine(model, vocab_size=renderer.vocab_size))
            parts = EpisodeContext(
                spec, self.books, renderer, parser_for(renderer), spec.rubric.build()
            )
            self.key = EpisodeKey(number, 0)
            task = Task("t", info={"seed": number, "markers": markers, "tools": True})
            self.trajectory = asyncio.run(run_episode(parts, task, self.key))
            path = [
                turn
                for turn in self.trajectory.turns
                if turn.parent is not None and turn.completion
            ]
            if len(path) >= 2:
                return
        raise AssertionError("no trajectory of several turns")

    def faults(self, trajectory: Trajectory) -> tuple[list[str], list[str]]:
        session = self.key.session_id
        return token_mismatches(trajectory, session, self.books), mask_errors(
            trajectory, session, self.books
        )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return Played(tmp_path_factory.mktemp("played"))


def changed(
    trajectory: Trajectory, change: Callable[[Segment], Segment], *, kind: SegmentKind
) -> Trajectory:
    """The trajectory with the last segment of a kind changed."""
    turns = list(trajectory.turns)
    for index in reversed(range(len(turns))):
        segments = list(turns[index].segments)
        for place in reversed(range(len(segments))):
            if segments[place].kind is kind and len(segments[place]) > 1:
                segments[place] = change(segments[place])
                split = len(turns[index].context)
                turns[index] = dataclasses.replace(
                    turns[index],
                    context=tuple(segments[:split]),
                    completion=tuple(segments[split:]),
                )
                return dataclasses.replace(trajectory, turns=tuple(turns))
    raise AssertionError(f"no segment of kind {kind.name}")


def other_id(segment: Segment) -> Segment:
    ids = segment.token_ids.copy()
    ids[0] += 1
    return dataclasses.replace(segment, token_ids=ids)


def shorter(segment: Segment) -> Segment:
    logprobs = None if segment.logprobs is None else segment.logprobs[:-1]
    return dataclasses.replace(segment, token_ids=segment.token_ids[:-1], logprobs=logprobs)


def as_policy(segment: Segment) -> Segment:
    return Segment(
        SegmentKind.POLICY, segment.token_ids, np.full(len(segment), -1.0, np.float32), 0
    )


def as_observation(segment: Segment) -> Segment:
    return Segment(SegmentKind.OBSERVATION, segment.token_ids)


def other_logprob(segment: Segment) -> Segment:
    assert segment.logprobs is not None
    return dataclasses.replace(segment, logprobs=segment.logprobs * 2)


def test_a_true_trajectory_has_no_fault(played: Played) -> None:
    assert played.faults(played.trajectory) == ([], [])


@pytest.mark.parametrize(
    ("change", "kind", "golden", "mask"),
    [
        (
            other_id,
            SegmentKind.POLICY,
            "its sequence is not what",
            "other tokens than the model made",
        ),
        (other_id, SegmentKind.TEMPLATE, "its sequence is not what", None),
        (shorter, SegmentKind.POLICY, "its completion is not what", "are trained"),
        (
            shorter,
            SegmentKind.OBSERVATION,
            "its sequence is not what",
            "other tokens than the model made",
        ),
        (
            as_policy,
            SegmentKind.OBSERVATION,
            None,
            "a token that the model did not make is trained",
        ),
        (
            as_policy,
            SegmentKind.TEMPLATE,
            None,
            "a token that the model did not make is trained",
        ),
        (as_observation, SegmentKind.POLICY, None, "a made token without its kind"),
        (
            other_logprob,
            SegmentKind.POLICY,
            None,
            "a made token without its kind and logprob",
        ),
    ],
)
def test_each_broken_account_is_named(
    played: Played,
    change: Callable[[Segment], Segment],
    kind: SegmentKind,
    golden: str | None,
    mask: str | None,
) -> None:
    found_golden, found_mask = played.faults(changed(played.trajectory, change, kind=kind))
    assert any(golden in fault for fault in found_golden) if golden else not found_golden
    assert any(mask in fault for fault in found_mask) if mask else not found_mask


def test_a_lost_parent_is_named(played: Played) -> None:
    turns = list(played.trajectory.turns)
    last = next(turn.index for turn in reversed(turns) if turn.parent is not None)
    turns[last] = dataclasses.replace(turns[last], parent=None)
    found = token_mismatches(
        dataclasses.replace(played.trajectory, turns=tuple(turns)),
        played.key.session_id,
        played.books,
    )
    assert f"turn {last}: its sequence is not what the engine was given and made" in found


def test_the_renderers_of_the_harness_are_renderers(tmp_path: Path) -> None:
    renderer: Renderer = built_variant(VARIANTS["llama3_1"], tmp_path)[0]
    assert renderer.family == "llama"
