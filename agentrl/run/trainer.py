"""Trainer: training, evaluation and rollouts from Python; ``agentrl train`` runs it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from agentrl.config import LoadedConfig, RunConfig, StageConfig
from agentrl.config.algorithm_rules import check_warmup
from agentrl.config.key_names import naming_keys
from agentrl.controller.evaluator import Evaluation
from agentrl.controller.ledger import Ledger
from agentrl.controller.stop_request import StopRequest
from agentrl.envs import EnvSpec, RewardFn, Rubric
from agentrl.errors import (
    CheckpointError,
    Closing,
    ConfigError,
    RankLostError,
    close_after,
)
from agentrl.metrics import JsonlSink, PhaseTimer, Sinks, StepDisplay, format_duration
from agentrl.rollouts import GroupRequest
from agentrl.run.build import LiveObjects, rollout_evaluator
from agentrl.run.context import check_contexts
from agentrl.run.lifetime.interruption import DRIVER_LOG, Interruption
from agentrl.run.lifetime.outlets import check_outlets, sink_openers, tracked_run
from agentrl.run.lifetime.restarts import Restarts
from agentrl.run.lifetime.resumption import existing_run, resume_directory
from agentrl.run.lifetime.session import RunContext, with_device
from agentrl.run.lifetime.signals import stopping_signals
from agentrl.run.lifetime.webhooks import COMPLETED, Webhooks
from agentrl.run.play.hosted_player import HostedPlayer
from agentrl.run.run_setup import make_directory, roll_back, start_model
from agentrl.run.stages import finished_stage, run_stage
from agentrl.run.vocabulary import check_vocabularies
from agentrl.store import (
    EventLog,
    Heartbeat,
    JsonlWriter,
    RunDirectory,
    TrajectoryWriter,
    logging_to,
    write_json,
)
from agentrl.terminal_log import warnings_on
from agentrl.tools import Tool, ToolFactory
from agentrl.training.device import devices_line
from agentrl.types import Task, Trajectory


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run came to, as in ``summary.json``.

    Args:
        run_dir: where everything is.
        eval: ``{set: {"before": {"sampled", "greedy"}, "after": {...}, "num_tasks"}}``.
        steps: steps of the last stage.
        seconds: wall-clock seconds by phase.
        steps_without_signal: steps of all stages in which the rewards gave nothing to learn from.
    """

    run_dir: Path
    eval: Mapping[str, Any]
    steps: int
    seconds: Mapping[str, float]
    steps_without_signal: int = 0

    def record(self) -> dict[str, Any]:
        """The content of ``summary.json``."""
        return {
            "eval": dict(self.eval),
            "steps": self.steps,
            "steps_without_signal": self.steps_without_signal,
            "seconds": dict(self.seconds),
        }


@dataclass(frozen=True, slots=True)
class _Session:
    """What all attempts of one call of ``train`` share."""

    directory: RunDirectory
    stages: list[StageConfig]
    display: StepDisplay
    events: EventLog
    heartbeat: Heartbeat
    stop: StopRequest
    take_signals: Callable[[], None]
    timer: PhaseTimer = field(default_factory=PhaseTimer)
    started: float = field(default_factory=time.monotonic)


class Trainer(Closing):
    """Runs a configuration; live objects may take the place of references in it.

    Use as a context manager, or call ``close``: workers live until then, so that ``evaluate`` and
    ``rollout`` after ``train`` use the trained weights.

    Args:
        config: from ``load_config``; or from ``load_with_origins``, so that ``run.json`` says
            where each setting was written.
        tools: tools on offer, instead of ``env.tools``.
        env: an Env class, a factory ``(task) -> Env`` or an EnvSpec, instead of
            ``env.entry_point``.
        reward: a reward function, several, or a Rubric, instead of ``reward.functions``.
        console: where progress is shown; None shows nothing.
    """

    closing = "ending the workers"

    def __init__(
        self,
        config: RunConfig | LoadedConfig,
        *,
        tools: Sequence[Tool | ToolFactory] | None = None,
        env: EnvSpec | Callable[..., Any] | None = None,
        reward: Rubric | RewardFn | Sequence[RewardFn] | None = None,
        console: Console | None = None,
    ) -> None:
        self._live = LiveObjects(tools, env, reward)
        self._sources: Mapping[str, str] = {}
        if isinstance(config, LoadedConfig):
            self._sources, config = config.sources(), config.config
        self._player = HostedPlayer(config, self._live)
        self._console = console or Console(quiet=True)

    @property
    def config(self) -> RunConfig:
        """The configuration, with what the machines decide once they are known."""
        return self._player.config

    @naming_keys()
    def train(self, steps: int | None = None, *, resume: bool = False) -> Summary:
        """Every stage in order.

        Args:
            steps: of the last stage, instead of its ``train.steps``.
            resume: go on with the run in ``run.dir`` from its newest checkpoint.

        Raises:
            ConfigError: ``run.dir`` holds a run already and ``resume`` is not asked for; or it is,
                and settings differ that a run keeps for good.
            HeldError: another process trains in ``run.dir``.
            MachineError: the sandbox that the configuration requires is not to be had here.
            EpisodesFailedError: too many episodes of a batch failed of one cause
                (``rollout.max_failed_frac``).
            RunInterruptedError: SIGTERM or SIGUSR1 came, in the main thread; ``resume`` goes on
                from the checkpoint.
        """
        self._player.config = with_device(self.config)
        stages = self.config.resolved_stages()
        if steps is not None:
            train = stages[-1].train.replace(steps=steps, epochs=None)
            stages[-1] = stages[-1].replace(train=train)
            check_warmup(stages[-1].make_algorithm(), steps)
        check_outlets(self.config, stages)
        stop = StopRequest()
        with stopping_signals(stop) as take_signals, ExitStack() as held:
            # A signal waits until the run can say how it goes on.
            stop.deferred = True
            changes: list[str] = []
            if resume:
                directory = existing_run(self.config, stages)
            else:
                directory = make_directory(self.config, stages, self._live, self._sources)
            # A second driver is refused before it writes anything.
            held.enter_context(directory.held())
            if resume:
                changes = resume_directory(directory, self.config, stages, self._sources)
            display = StepDisplay(self._console, directory.root)
            for line in changes:
                display.message(line)
            log_folder = directory.log_folder.resolve()
            self._player.log_folder = log_folder
            with (
                logging_to(log_folder / DRIVER_LOG),
                warnings_on(display.alert),
                closing(Webhooks(directory.root.resolve().name, stages)) as webhooks,
                closing(EventLog(directory, webhooks.tell)) as events,
                Heartbeat(directory) as heartbeat,
            ):
                interruption = Interruption(stop, directory, stages, display, events)
                try:
                    with display:
                        stop.deferred = False
                        stop.check()
                        session = _Session(
                            directory,
                            stages,
                            display,
                            events,
                            heartbeat,
                            stop,
                            take_signals,
                        )
                        return self._train(session, resume=resume)
                except BaseException as error:
                    # From here on a signal cuts nothing short.
                    stop.deferred = True
                    if interruption.tell(error) is None and isinstance(error, Exception):
                        # a disk that is full may not take even why it failed
                        record = partial(events.failure, "run_failed", error)
                        close_after(error, record, "recording it")
                    # a group that failed answers no more; the next call has a fresh one
                    close_after(error, self.close, self.closing)
                    # the same signal may have ended a rank before it came here
                    instead = interruption.tell(error)
                    if instead is not None:
                        raise instead from error
                    interruption.tell_failure(error)
                    raise

    def evaluate(self, name: str | None = None) -> dict[str, Any]:
        """Evaluates the policy on one held-out set or all: ``{set: {"sampled", "greedy",
        "num_tasks"}}``."""
        results = self.evaluate_sets(name)
        return {
            result.name: {**result.numbers, "num_tasks": result.num_tasks}
            for result in results
        }

    @naming_keys()
    def evaluate_sets(
        self,
        name: str | None = None,
        *,
        samples: int | None = None,
        greedy: bool | None = None,
    ) -> list[Evaluation]:
        """Evaluates the policy and keeps every episode; each set is played with its own settings,
        as in training.

        Args:
            name: one of ``eval.sets``; by default all but those that are ``baseline_only``.
            samples: episodes sampled a task, instead of ``eval.samples``.
            greedy: whether a greedy episode is played too, instead of ``eval.greedy``.

        Raises:
            ConfigError: there is no set of that name, or none at all.
        """
        stage = self._player.stage()
        sets = stage.eval.sets
        if name is not None and name not in sets:
            raise ConfigError(
                f"eval.sets has no {name!r}; it has {', '.join(sets) or 'none'}"
            )
        chosen = {
            own: item.replace(baseline_only=False)
            for own, item in sets.items()
            if own == name or (name is None and not item.baseline_only)
        }
        if not chosen:
            raise ConfigError(
                "eval.sets names no set of tasks to evaluate; add one: "
                "eval.sets.NAME=file.py:function"
            )
        given = {"samples": samples or None, "greedy": greedy}
        asked = {key: value for key, value in given.items() if value is not None}
        stage = stage.replace(eval=stage.eval.replace(sets=chosen, **asked))
        evaluator = rollout_evaluator(stage, self._live, self._player.play)
        return list(evaluator.evaluate("now"))

    @naming_keys()
    def rollout(self, tasks: Iterable[Task], *, samples: int = 1) -> list[Trajectory]:
        """Plays tasks with the policy as it is, ``samples`` episodes each; nothing is trained or
        stored."""
        requests = [
            GroupRequest(group_index, task, samples, "eval", "rollout")
            for group_index, task in enumerate(tasks)
        ]
        outcomes = self._player.play(requests) if requests else ()
        return [t for outcome in outcomes for t in outcome.group.trajectories]

    def close(self) -> None:
        """Ends the workers; a second call does nothing."""
        self._player.close()

    def _train(self, session: _Session, *, resume: bool) -> Summary:
        """Trains to the end, also where ranks are lost on the way."""
        most = self.config.placement.rank_restarts
        restarts = Restarts(most, session.directory, session.stages, session.events)
        lost: RankLostError | CheckpointError | None = None
        while True:
            try:
                if lost is not None:
                    restarts.begin(lost)
                    session.display.status("starting the ranks again")
                    with session.timer.phase("setup"):
                        self._player.processes.restart_ranks()
                return self._attempt(session, restarts, resume=resume or lost is not None)
            except (RankLostError, CheckpointError) as error:
                # the signal that ends a run may end its ranks too
                if error is lost or session.stop.by:
                    raise
                lost = error

    def _attempt(self, session: _Session, restarts: Restarts, *, resume: bool) -> Summary:
        """Every stage, from the newest checkpoint where there is one to resume."""
        directory, stages, timer = session.directory, session.stages, session.timer
        display, events, heartbeat = session.display, session.events, session.heartbeat
        display.status("making ready the model and its workers")
        with timer.phase("setup"):
            models = {"model": start_model(self.config, directory)}
            check_vocabularies(stages, models["model"])
            check_contexts(stages, models["model"])
            processes = self._player.processes
            # Ray has taken SIGTERM for itself as it started.
            session.take_signals()
            hosts = processes.describe()
        heartbeat.parts |= {"loop": timer.now, "processes": processes.now}
        display.message(devices_line([(process.host, process.device) for process in hosts]))
        if stages[0].device == "cuda" or any(stage.train.compile for stage in stages):
            display.message(
                "the first updates compile their kernels: they may take half a minute"
            )
        results: dict[str, Any] = {}
        first_group_index = num_steps = played = without_signal = 0
        tracked = tracked_run(self.config, stages, directory, events, display)
        with ExitStack() as stack:
            ledger = stack.enter_context(closing(Ledger(directory.ledger_path)))
            if resume:
                # The writer's annotations bear the number of resumes that it finds, and the
                # metrics' file is replaced here, so both are opened later.
                roll_back(directory, stages, ledger, tracked.known)
                events.log(
                    "resumed", f"attempt {ledger.attempt} of the run begins", boundary="run"
                )
            writer = stack.enter_context(
                TrajectoryWriter(
                    directory, keep=self.config.store.keep, detail=self.config.store.detail
                )
            )
            metrics = self.config.metrics
            sink = stack.enter_context(
                Sinks(
                    [JsonlSink(JsonlWriter(directory.metrics_path)), heartbeat],
                    sink_openers(metrics, tracked),
                    phases=JsonlWriter(directory.phases_path),
                    verl_names=metrics.verl_names,
                    told=partial(events.log, boundary="metrics", level="warning"),
                )
            )
            timer.told = sink.take_times
            parts = RunContext(
                directory,
                processes,
                self._live,
                ledger,
                writer,
                events,
                sink,
                display,
                timer,
                session.stop,
                heartbeat,
                restarts,
            )
            for stage in stages:
                models[stage.name] = directory.models_folder / stage.name
                outcome = finished_stage(parts, stage) if resume else None
                if outcome is None:
                    outcome = run_stage(
                        parts,
                        stage,
                        models,
                        first_group_index=first_group_index,
                        resume=resume,
                    )
                    self._player.hosting = stage.plays and not stage.replays
                first_group_index = max(first_group_index, outcome.next_group_index)
                num_steps = outcome.steps
                played += outcome.steps if stage.plays else 0
                without_signal += outcome.without_signal
                results |= outcome.results
        self._player.models = models
        timer.add("total", time.monotonic() - session.started)
        took = format_duration(timer.total()["total"])
        events.log(COMPLETED, f"the run is complete after {took}", boundary="run")
        summary = Summary(directory.root, results, num_steps, timer.total(), without_signal)
        # It comes last: a run that has no heartbeat counts as finished where this file is.
        write_json(directory.summary_path, summary.record())
        place = shlex.quote(str(directory.root))
        hints = [f"agentrl ls {place}", f"agentrl show {place}"]
        if without_signal:
            display.alert(
                f"{without_signal} of {played} steps had no signal: the rewards of each group were "
                "equal, so that nothing could be learned"
            )
        display.finish(results, summary.seconds, hints)
        return summary
