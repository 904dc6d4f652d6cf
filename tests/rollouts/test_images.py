"""Images through the loop: where they stand, what the engine is given, and what ends an episode."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pictures

from agentrl.engines.openai import OpenAIEngine
from agentrl.engines.scripted import ScriptedEngine
from agentrl.envs import Env, EnvSpec, Rubric, ToolEnv
from agentrl.llm import ChatServerSpec
from agentrl.render import Renderer, RendererSpec
from agentrl.rollouts import (
    EpisodeContext,
    EpisodeKey,
    EpisodeSettings,
    RolloutSpec,
    make_batch,
    run_episode,
)
from agentrl.tools import ToolOutput, parser_for, tool
from agentrl.tools.parsers import load_parser
from agentrl.types import (
    Action,
    GenerateRequest,
    Image,
    Observation,
    SegmentKind,
    StepResult,
    Task,
    Trajectory,
    TrajectoryGroup,
)
from tests.agent_server.served_policy import serving
from tests.llm.odd_server import odd_server, said
from tests.render.qwen_kind import template_text
from tests.rollouts.bytewise import Built, call, length_reward, rollout_spec
from tests.tiny_vision import MARKERS, picture, write_vision_tokenizer

FIRST, SECOND = picture(84, 56), picture(28, 28, seed=1)


@tool
def look(times: int = 1) -> ToolOutput:
    """Looks.

    Args:
        times: how often.
    """
    return ToolOutput("seen", images=[SECOND] * times)


@tool
def draw() -> Any:
    """Draws."""
    return Pictures.new("RGB", (28, 28))


@tool
def blur() -> ToolOutput:
    """Gives what is no image."""
    return ToolOutput("here", images=[b"no image"])


@pytest.fixture(scope="module", params=["chatml", "qwen3_vl"])
def renderer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Renderer:
    """Of plain ChatML, and of a template as its models ship it."""
    folder = tmp_path_factory.mktemp("vision")
    write_vision_tokenizer(
        folder, None if request.param == "chatml" else template_text(request.param)
    )
    return RendererSpec(
        str(folder), chat_template="chatml" if request.param == "chatml" else None
    ).build()


class Speaks:
    """A scripted model that says the given texts, each ended as it should be."""

    def __init__(self, renderer: Renderer, *texts: str | Sequence[int]) -> None:
        self.renderer, self.texts = renderer, texts

    def __call__(self, request: GenerateRequest) -> Sequence[int]:
        text = self.texts[int(request.request_id.rpartition("/")[2])]
        return (
            [*self.renderer.tokenize(text), self.renderer.stop_token_ids[0]]
            if isinstance(text, str)
            else text
        )


def asked(*parts: str | bytes, **more: Any) -> Task:
    content = [
        {"type": "text", "text": p} if isinstance(p, str) else {"type": "image", "image": p}
        for p in parts
    ]
    return Task("t", ({"role": "user", "content": content},), **more)


async def play(
    renderer: Renderer, task: Task, *texts: Any, env: EnvSpec | None = None, **limits: Any
) -> tuple[Trajectory, list[GenerateRequest]]:
    bounds = {"max_turns": 6, "max_turn_tokens": 100, "max_response_tokens": 2400} | limits
    max_prompt_tokens = bounds.pop("max_prompt_tokens", 1200)
    spec = RolloutSpec(
        env=env or EnvSpec(ToolEnv, kwargs={"tools": [look, draw, blur]}),
        renderer=Built(renderer),
        parser="hermes",
        rubric=Built(Rubric([length_reward])),
        episode=EpisodeSettings(**bounds),
        max_prompt_tokens=max_prompt_tokens,
        root_seed=0,
    )
    engine = ScriptedEngine(Speaks(renderer, *texts), vocab_size=renderer.vocab_size)
    parts = EpisodeContext(
        spec, engine, renderer, parser_for(renderer, "hermes"), spec.rubric.build()
    )
    return await run_episode(parts, task, EpisodeKey(0, 0)), engine.requests


def sent(part: str | bytes) -> dict[str, Any]:
    """A part as OpenAI's clients send it."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image_url", "image_url": {"url": Image.read(part).data_uri()}}


def placeholders(renderer: Renderer, request: GenerateRequest) -> list[int]:
    return np.flatnonzero(
        np.isin(request.token_ids, list(renderer.image_token_ids))
    ).tolist()


async def test_each_request_names_every_image_of_its_sequence(renderer: Renderer) -> None:
    trajectory, requests = await play(
        renderer, asked("What?", FIRST), call("look", times=2), "A cat."
    )
    assert str(trajectory.status) == "terminated"
    names = [[image.sha256 for image in request.images] for request in requests]
    first, second = Image.read(FIRST).sha256, Image.read(SECOND).sha256
    assert names == [[first], [first, second, second]]
    for request in requests:
        spans = [range(s.start, s.start + s.num_tokens) for s in request.media]
        assert [place for span in spans for place in span] == placeholders(
            renderer, request
        )
        assert [image.bytes() for image in request.images][:1] == [FIRST]


async def test_no_token_of_an_image_is_trained(renderer: Renderer) -> None:
    trajectory, _ = await play(renderer, asked("What?", FIRST), call("look"), "A cat.")
    group = TrajectoryGroup(0, trajectory.task, (trajectory,))
    batch = make_batch([group], credit=np.ones(1, np.float32))
    images = np.isin(batch.token_ids, list(renderer.image_token_ids))
    assert images.sum() == 6 + 1
    assert batch.loss_mask[images].sum() == 0
    assert (
        batch.kind[images] == [SegmentKind.PROMPT] * 6 + [SegmentKind.OBSERVATION]
    ).all()
    assert batch.loss_mask.sum() == trajectory.num_policy_tokens


async def test_a_tool_may_return_a_picture_itself(renderer: Renderer) -> None:
    trajectory, requests = await play(renderer, asked("Draw."), call("draw"), "Done.")
    (record,) = trajectory.turns[0].calls
    assert record.result is not None
    assert record.result.content == ""
    assert record.result.images == requests[1].images


async def test_a_tool_whose_image_cannot_be_read_is_answered_with_what_to_mend(
    renderer: Renderer,
) -> None:
    trajectory, requests = await play(renderer, asked("Look."), call("blur"), "Sorry.")
    (record,) = trajectory.turns[0].calls
    assert record.result is not None
    assert record.result.error == "exception"
    assert (
        "blur gave an image that cannot be used: image 0: 8 bytes that cannot be read"
        in record.result.content
    )
    assert not requests[1].images


class Screen(Env):
    """Shows a screen by name, then rewrites its history to the last one."""

    def __init__(self, task: Task) -> None:
        self.task = task

    async def reset(self, *, seed: int) -> Observation:
        content = [{"type": "text", "text": "Play."}, {"type": "image", "image": "screen"}]
        return Observation(
            ({"role": "user", "content": content},), images={"screen": FIRST}
        )

    async def step(self, action: Action) -> StepResult:
        if action.text == "end":
            return StepResult(Observation(), terminated=True)
        content = [{"type": "image", "image": "screen"}]
        return StepResult(
            Observation(
                rewrite=({"role": "user", "content": content},), images={"screen": SECOND}
            )
        )


async def test_a_rewritten_history_keeps_its_own_images(renderer: Renderer) -> None:
    trajectory, requests = await play(renderer, Task("t"), "go", "end", env=EnvSpec(Screen))
    assert [[image.data for image in request.images] for request in requests] == [
        [FIRST],
        [SECOND],
    ]
    assert set(trajectory.images()) == {Image.read(FIRST).sha256, Image.read(SECOND).sha256}


async def test_an_unreadable_image_of_a_task_fails_its_episode_by_name(
    renderer: Renderer,
) -> None:
    trajectory, requests = await play(renderer, asked("What?", b"no image"))
    assert str(trajectory.status) == "failed(data)"
    assert (
        "part 1 of a user message: 8 bytes that cannot be read as an image"
        in trajectory.status.detail
    )
    assert not trajectory.info["retryable"]
    assert not requests


async def test_an_image_with_too_many_tokens_for_the_prompt_is_named(
    renderer: Renderer,
) -> None:
    trajectory, _ = await play(renderer, asked(*[FIRST] * 10), max_prompt_tokens=60)
    assert str(trajectory.status) == "failed(data)"
    assert "data.max_prompt_tokens is 60" in trajectory.status.detail


async def test_images_that_do_not_fit_the_context_truncate(renderer: Renderer) -> None:
    trajectory, _ = await play(
        renderer, asked("?"), call("look", times=40), "-", context_tokens=620
    )
    assert str(trajectory.status) == "truncated(context_tokens)"


async def test_a_sampled_placeholder_ends_the_episode(renderer: Renderer) -> None:
    forged = [
        next(iter(renderer.image_token_ids)),
        *renderer.tokenize(call("look")),
        renderer.stop_token_ids[0],
    ]
    trajectory, requests = await play(renderer, asked("?", FIRST), forged, "never asked")
    assert str(trajectory.status) == "truncated(image_token)"
    assert len(requests) == 1
    assert trajectory.num_policy_tokens == len(forged)


@pytest.mark.slow
async def test_fuzzed_episodes_keep_the_token_consistency(renderer: Renderer) -> None:
    rng = random.Random(3)
    for _ in range(300):
        task = asked(
            *(
                rng.choice(["text", "".join(MARKERS), FIRST, SECOND])
                for _ in range(rng.randint(1, 4))
            )
        )
        calls = [call("look", times=rng.randint(0, 3)) for _ in range(rng.randint(0, 3))]
        trajectory, requests = await play(renderer, task, *calls, "End.")
        assert str(trajectory.status) == "terminated"
        for request, turn in zip(requests, trajectory.turns, strict=True):
            made = [int(i) for segment in turn.completion for i in segment.token_ids]
            assert trajectory.sequence(turn.index).tolist() == [
                *request.token_ids.tolist(),
                *made,
            ]
            spans = [
                place
                for s in request.media
                for place in range(s.start, s.start + s.num_tokens)
            ]
            assert spans == placeholders(renderer, request)
            assert [s.sha256 for s in request.media] == [
                image.sha256 for image in request.images
            ]
        assert trajectory.info["retok_frac"] == 0


async def test_an_agent_of_its_own_sends_images(renderer: Renderer) -> None:
    engine = ScriptedEngine(
        Speaks(renderer, "A cat.", "A dog."), vocab_size=renderer.vocab_size
    )
    first: Any = {"role": "user", "content": [sent("What?"), sent(FIRST)]}
    async with serving(
        engine, renderer=renderer, max_prompt_tokens=1000, context_tokens=3000
    ) as served:
        episode = await served.open()
        answer = await episode.say(first)
        reply = {"role": "assistant", "content": answer.content}
        await episode.say(
            first, reply, {"role": "user", "content": [sent(SECOND), sent("And now?")]}
        )
        trajectory = await episode.end()
    assert [turn.parent for turn in trajectory.turns] == [None, 0]
    assert [[image.data for image in request.images] for request in engine.requests] == [
        [FIRST],
        [FIRST, SECOND],
    ]
    for request in engine.requests:
        spans = [
            place for s in request.media for place in range(s.start, s.start + s.num_tokens)
        ]
        assert spans == placeholders(renderer, request)


async def test_an_openai_compatible_server_is_sent_images() -> None:
    async with odd_server(said("A cat.")) as server:
        spec = dataclasses.replace(rollout_spec(), renderer=None)
        made = OpenAIEngine(ChatServerSpec(server.url, "m"))
        parts = EpisodeContext(spec, made, None, load_parser("none"), spec.rubric.build())
        try:
            trajectory = await run_episode(parts, asked("What?", FIRST), EpisodeKey(0, 0))
        finally:
            await made.close()
    assert str(trajectory.status) == "terminated"
    (body,) = server.asked
    assert body["messages"][0]["content"] == [sent("What?"), sent(FIRST)]
