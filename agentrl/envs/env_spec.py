"""Environment spec: an environment as data, built by its host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.envs.env import Env
from agentrl.envs.tool_env import ToolEnv
from agentrl.envs.wrappers import WrapperReference, wrapped
from agentrl.errors import EnvError
from agentrl.sandbox import SandboxPool, SandboxSpec
from agentrl.types import Task, load_object
from agentrl.types.user_code.values import private_copy, private_task
from agentrl.types.user_code.wall import failed_as, wall


@dataclass(frozen=True)
class EnvSpec:
    """How to make the environment of an episode. It pickles where its parts do; text always does.

    Args:
        factory: called as ``factory(task, **kwargs)``; a class, a function, or text for
            ``load_object``.
        kwargs: the same for every episode.
        base_dir: the folder that a relative path in ``factory`` starts from.
        sandbox: passed to the factory as ``sandbox=``, where given: the spec, or its host's pool of
            them.
        wrappers: around the environment, the first one innermost.
        copied: names of those ``kwargs`` of which each environment gets a copy of its own.
    """

    factory: Callable[..., Env] | str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    base_dir: str | None = None
    sandbox: SandboxSpec | None = None
    wrappers: tuple[WrapperReference, ...] = ()
    copied: tuple[str, ...] = ()
    _seen_plain: set[bool] = field(
        default_factory=set, init=False, compare=False, repr=False
    )

    @property
    def name(self) -> str:
        """The class or function that makes the environment, without its module or file."""
        if isinstance(self.factory, str):
            return self.factory.rpartition(":")[2].rpartition(".")[2]
        return getattr(self.factory, "__name__", type(self.factory).__name__)

    @property
    def is_plain(self) -> bool:
        """Whether one was made, and the next one runs no constructor of a user's and loads nothing:
        it takes microseconds, and needs no thread.
        """
        return bool(self._seen_plain)

    def build(
        self, task: Task, *, sandboxes: SandboxPool | None = None, episode_id: str = ""
    ) -> Env:
        """A fresh environment for ``task``, of which it gets a copy of its own.

        Args:
            task: the problem.
            sandboxes: the host's pool, from which the environment takes its sandbox instead of
                building one.
            episode_id: becomes ``Env.episode_id``.

        Raises:
            DataError: the task holds what cannot be copied.
            ConfigError: ``factory`` or a wrapper is text that names nothing.
            EnvError: the factory raised, or gave something else than an Env.
        """
        if isinstance(self.factory, str):
            name = self.factory
            factory = load_object(name, self.base_dir)
        else:
            factory = self.factory
            name = getattr(factory, "__qualname__", repr(factory))
        if not callable(factory):
            raise EnvError(
                f"{name} must be a class or function that makes an Env, got "
                f"{type(factory).__name__}"
            )
        extra = {} if self.sandbox is None else {"sandbox": sandboxes or self.sandbox}
        own = {name: self.kwargs[name] for name in self.copied if name in self.kwargs}
        given = private_task(task)
        failed = failed_as(EnvError, f"{name} raised for task {task.id!r}:")
        with wall(failed):
            env: object = factory(given, **{**self.kwargs, **private_copy(own)}, **extra)
        if not isinstance(env, Env):
            raise EnvError(
                f"{name} must make an agentrl.envs.Env, got {type(env).__name__}; let it subclass "
                "Env"
            )
        plain = env
        with wall(failed):
            env = wrapped(env, self.wrappers, self.base_dir)
            if episode_id:
                env.episode_id = episode_id
        if (
            env is plain
            and type(env) is factory
            and isinstance(env, ToolEnv)
            and env.is_plain
        ):
            self._seen_plain.add(True)
        return env
