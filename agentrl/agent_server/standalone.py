"""Standalone server: the endpoint without a training run, whose clients open and end episodes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl.agent_server.api.api_error import PolicyApiError, bad_request
from agentrl.agent_server.api.request import ChatRequest
from agentrl.agent_server.episode import ServedEpisode
from agentrl.agent_server.server import PolicyServer, ServedDriver
from agentrl.agent_server.stream_writer import StreamWriter
from agentrl.envs import Rubric
from agentrl.errors import ConfigError
from agentrl.llm import from_wire
from agentrl.rollouts.builder import TrajectoryBuilder
from agentrl.rollouts.context import EpisodeContext, PhaseSemaphores
from agentrl.rollouts.episode import run_episode
from agentrl.rollouts.rollout_spec import EpisodeKey
from agentrl.rollouts.turns import TurnGenerator, TurnResult
from agentrl.types import Task, Trajectory


class StandaloneServer(PolicyServer):
    """Serves the policy until it is closed; created in the event loop that serves.

    Args:
        context: engine, renderer, parser, rubric and limits.
        keep: gets each episode's trajectory after it is scored; its errors end ``until_failure``.
        host, port: the address; port 0 takes a free one.
        idle_timeout_s: seconds without a request after which an episode ends.
        token, hosts: see ``EpisodeRegistry``.
        strict_keys, loose_history: see ``ServedEpisode``.

    Raises:
        ConfigError: the rubric scores groups.

    Attributes:
        name: of its episodes' environment, which is outside of agentrl.
    """

    name = "served"

    def __init__(
        self,
        context: EpisodeContext,
        keep: Callable[[Trajectory], None],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        idle_timeout_s: float = 300.0,
        token: str = "",
        hosts: Sequence[str] = (),
        strict_keys: bool = False,
        loose_history: bool = False,
    ) -> None:
        check_served_rubric(context.rubric)
        super().__init__(context.engine, host=host, port=port, token=token, hosts=hosts)
        self._context = context
        self._keep = keep
        self._idle_timeout_s = idle_timeout_s
        self._reads = {"strict_keys": strict_keys, "loose_history": loose_history}
        self._numbers = itertools.count()
        running = context.spec.permits.running
        self._permits = PhaseSemaphores(running, running, running)
        self._playing: dict[str, asyncio.Task[Trajectory]] = {}
        # By the number of an episode; resolved with its driver once it is open.
        self._opening: dict[int, asyncio.Future[ServedDriver]] = {}
        # Resolved with the first error of ``keep``.
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """Cancels the open episodes, then ends the endpoint."""
        playing = list(self._playing.values())
        for task in playing:
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
        await self._context.rubric.close()
        await super().close()

    async def open(self, body: Any, root: str) -> dict[str, Any]:
        """See ``EpisodeRegistry.open``: the body may hold a ``task``."""
        most = self._context.spec.permits.running
        if len(self.episodes) + len(self._opening) >= most:
            raise PolicyApiError(
                429,
                "too_many_episodes",
                f"{most} episodes are open, as many as RolloutSpec.permits.running: POST "
                "/episodes/ID/end ends one, and so does the server where nothing was asked for "
                f"{self._idle_timeout_s:g} s; try again then",
            )
        number = next(self._numbers)
        task = _task(body.get("task", {}), f"served-{number}")
        opened = self._opening[number] = asyncio.get_running_loop().create_future()
        playing = asyncio.create_task(self._play(task, number))
        await asyncio.wait([opened, playing], return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            detail = playing.result().status.detail
            raise PolicyApiError(
                503, "not_opened", f"the episode could not be opened: {detail}"
            )
        driver = opened.result()
        self._playing[driver.episode_id] = playing
        playing.add_done_callback(lambda _: self._remove(driver.episode_id))
        url = f"{root}/episodes/{driver.episode_id}"
        return {
            "id": driver.episode_id,
            "url": url,
            "base_url": f"{url}/v1",
            "task": task.id,
        }

    async def outcome(self, episode_id: str) -> dict[str, Any]:
        """See ``EpisodeRegistry.outcome``."""
        # A client that hangs up cancels its request, never the episode.
        trajectory = await asyncio.shield(self._playing[episode_id])
        return {
            "id": episode_id,
            "trajectory": trajectory.id,
            "status": str(trajectory.status),
            "detail": trajectory.status.detail,
            "reward": trajectory.reward,
            "rewards": dict(trajectory.rewards),
            "turns": len(trajectory.turns),
            "policy_tokens": trajectory.num_policy_tokens,
        }

    async def complete_standalone(self, stream: StreamWriter) -> TurnResult:
        """See ``EpisodeRegistry.complete_standalone``: sampled as requested, and not stored."""
        turns = self._turns_alone()
        try:
            return await ServedEpisode(turns, obey_sampling=True).complete(stream)
        finally:
            await turns.release()

    def count_standalone(self, request: ChatRequest) -> int:
        """See ``EpisodeRegistry.count_standalone``."""
        return ServedEpisode(self._turns_alone()).count_tokens(request)

    def _turns_alone(self) -> TurnGenerator:
        number = next(self._numbers)
        key = EpisodeKey(number, 0, 0, "eval", "alone")
        builder = TrajectoryBuilder(key, Task(f"alone-{number}"))
        return TurnGenerator(self._context, builder, self._context.spec.episode.sampling)

    async def until_failure(self) -> None:
        """Waits until a trajectory cannot be kept.

        Raises:
            AgentRLError: the error that ``keep`` raised.
        """
        # Whoever stops waiting must not cancel the failure that others wait for.
        await asyncio.shield(self._failure)

    def _remove(self, episode_id: str) -> None:
        playing = self._playing.pop(episode_id)
        error = None if playing.cancelled() else playing.exception()
        if error is not None and not self._failure.done():
            self._failure.set_exception(error)

    def driver(self, turns: TurnGenerator) -> ServedDriver:
        """See ``DriverSpec.driver``."""
        opened = self._opening.pop(turns.builder.key.group_index)
        return ServedDriver(
            turns,
            self,
            idle_timeout_s=self._idle_timeout_s,
            on_open=opened.set_result,
            **self._reads,
        )

    async def _play(self, task: Task, number: int) -> Trajectory:
        key = EpisodeKey(number, 0, 0, "eval", "served")
        trajectory = await run_episode(
            self._context, task, key, env=self, permits=self._permits
        )
        self._keep(trajectory)
        return trajectory


def check_served_rubric(rubric: Rubric) -> None:
    """Refuses a rubric that scores groups, since every episode of a client's is alone.

    Raises:
        ConfigError: a part is a function of a whole group; it is named.
    """
    if parts := rubric.group_parts:
        raise ConfigError(
            f"RolloutSpec.rubric: {parts[0]!r} scores the episodes of a group together (it is "
            "marked group_rewards, or called with lists as verl and TRL call it), and an episode "
            "of a served policy has no group; leave it out, or score each episode by a function of "
            "its own",
            fields=["RolloutSpec.rubric"],
        )


def _task(given: Any, default_id: str) -> Task:
    if not isinstance(given, Mapping):
        raise bad_request(f"task must be an object, got {type(given).__name__}")
    if unknown := sorted(
        given.keys() - {"id", "messages", "answer", "data_source", "info"}
    ):
        raise bad_request(f"task has no {unknown[0]!r}; it has id, messages, answer, info")
    listed = given.get("messages", [])
    if not isinstance(listed, list):
        raise bad_request(f"task.messages must be a list, got {type(listed).__name__}")
    messages = tuple(from_wire(m, f"task.messages[{n}]") for n, m in enumerate(listed))
    info = given.get("info", {})
    if not isinstance(info, Mapping):
        raise bad_request(f"task.info must be an object, got {type(info).__name__}")
    source = str(given.get("data_source", "default"))
    return Task(
        str(given.get("id", default_id)), messages, given.get("answer"), source, dict(info)
    )
