"""``agentrl serve policy``: an engine, the endpoint over it, and a run directory for what its
episodes become.
"""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from agentrl.agent_server import StandaloneServer
from agentrl.agent_server.standalone import check_served_rubric
from agentrl.config import load_config
from agentrl.rollouts import EpisodeContext
from agentrl.run.build import LiveObjects, rollout_spec
from agentrl.run.engine import engine_plan
from agentrl.run.lifetime.record import new_run
from agentrl.run.policy_source import (
    check_no_scorer,
    played_stage,
    policy_folder,
    stage_alone,
)
from agentrl.run.stage_tokenizer import keep_tokenizer
from agentrl.store import RunDirectory, TrajectoryWriter
from agentrl.store.model_folder import given_model
from agentrl.types import Trajectory


def serve_policy(
    model: Path,
    config: Path,
    overrides: Sequence[str],
    *,
    host: str,
    port: int,
    out: Path | None,
    idle_timeout_s: float,
    token: str,
    hosts: Sequence[str],
    announce: Callable[[str], None],
) -> None:
    """Serves until SIGINT or SIGTERM; episodes that are open then are cancelled.

    Args:
        model: a run directory or a model folder.
        config, overrides: engine, limits, sampling and rewards, of the last stage that plays
            episodes.
        host, port: the address; port 0 takes a free one.
        out: a new run directory for the trajectories; None keeps none.
        idle_timeout_s: seconds without a request after which an episode ends.
        token, hosts: see ``StandaloneServer``.
        announce: told the URL once it is served.

    Raises:
        ConfigError: the configuration is at fault, or ``out`` holds files.
        DataError: there are no such weights.
        MachineError: the address cannot be listened on.
    """
    if out is not None:
        RunDirectory.check_new(out)
    stage = played_stage(load_config(config, overrides, trains=False))
    check_no_scorer(stage, "a served policy")
    folder = given_model(str(policy_folder(model, stage.base_dir)), Path())
    spec = rollout_spec(stage, LiveObjects(), folder)
    check_served_rubric(spec.rubric.build())
    with ExitStack() as stack:
        # All parts are built before the run directory is made, so that a fault leaves no folder
        # behind.
        engine = engine_plan(stage, folder, serves_agents=True).build()
        stack.callback(engine.close)
        parts = EpisodeContext.of(spec, engine)
        keep = _forget
        if out is not None:
            directory = new_run(out, stage_alone(stage, folder), str(folder))
            keep_tokenizer(directory, stage.name, folder)
            writer = stack.enter_context(
                TrajectoryWriter(directory, detail=stage.store.detail)
            )

            def keep(trajectory: Trajectory) -> None:
                writer.write(trajectory, 0)
                # A client that ends an episode may look it up at once.
                writer.flush()

        server = functools.partial(
            StandaloneServer,
            parts,
            keep,
            host=host,
            port=port,
            idle_timeout_s=idle_timeout_s,
            token=token,
            hosts=hosts,
            strict_keys=stage.env.agent_keys == "strict",
            loose_history=stage.env.history == "loose",
        )
        asyncio.run(_serve(server, announce))


async def _serve(
    make: Callable[[], StandaloneServer], announce: Callable[[str], None]
) -> None:
    server = make()
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    try:
        announce(await server.start())
        ending = [
            asyncio.create_task(stopped.wait()),
            asyncio.create_task(server.until_failure()),
        ]
        done, _ = await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
        for task in ending:
            task.cancel()
        for task in done:
            task.result()
    finally:
        await server.close()


def _forget(trajectory: Trajectory) -> None:
    """An episode that nobody keeps."""
