"""Environment: one instance an episode, with Gymnasium's verbs and meanings.

It may give the solution of its task. A task brings that as ``info["solution"]`` (the column
``solution`` of a data set), an environment by its method ``solution``. It is one text, or a list of
turns: each a text, or an assistant's message with ``content`` and ``tool_calls``, whose calls may
be short: ``{"name", "arguments"}``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from agentrl.errors import DataError
from agentrl.llm.wire import stored_message
from agentrl.tools import TokenEnds
from agentrl.types import Action, Message, Observation, StepResult, Task
from agentrl.types.user_code.values import shown


class Env(ABC):
    """The world of one episode. It acts on parsed messages, never on tokens, and owns its tools and
    its sandbox.

    ``reset`` is called once, then ``step`` until a result ends the episode, then ``close`` in any
    case. Each may be sync or async; sync methods run in threads, one call at a time, not always in
    the same thread. What a method raises ends the episode as failed, so tell the model about its
    own mistakes in the observation instead.

    ``AsyncEnv`` holds an Env to this; ``check_env`` tries it out.

    Attributes:
        episode_id: whose world it is, unique in the run and the name of the episode's trajectory;
            empty where nobody said so, and always while the instance is made.
    """

    episode_id: str = ""

    @abstractmethod
    def reset(self, *, seed: int) -> Observation | Awaitable[Observation]:
        """The opening conversation and the tools on offer.

        Args:
            seed: all that is random here comes from it: rollouts of a group get the same.
        """

    @abstractmethod
    def step(self, action: Action) -> StepResult | Awaitable[StepResult]:
        """What the assistant's message caused.

        ``terminated`` says that the task itself came to its end, ``truncated`` that something cut
        it; where neither holds, the observation has at least one message. Every call and problem of
        the action is answered.
        """

    def close(self) -> Awaitable[None] | None:
        """Free everything; runs after the rubric, also when ``reset`` failed or never ran, and
        maybe twice.
        """
        return None

    def solution(self) -> Any:
        """The reference solution, by which `agentrl check` tries the rewards; None where there is
        none, or where the task brings it as ``info["solution"]``.

        Asked for after ``reset`` on an instance of its own. It is one text, or a list of the
        assistant's turns, each a text or a message with ``content`` and ``tool_calls``
        (docs/envs.md).
        """
        return None

    @property
    def unwrapped(self) -> Env:
        """The environment within its wrappers."""
        return self

    def use_tokenizer(self, token_ends: TokenEnds) -> None:
        """Called before ``reset`` with the policy's tokenizer, where there is one, by an
        environment that counts tokens.
        """
        return None

    def snapshot(self) -> Mapping[str, Any] | None:
        """The state for people to look at, JSON; None where there is nothing to see.

        Asked for after ``reset`` and after each step, and stored with the turn (docs/envs.md). A
        checkpoint's state is another thing: ``state_dict``.
        """
        return None

    def state_dict(self) -> Mapping[str, Any] | None:
        """What a checkpoint keeps of an episode in flight, to be pickled; asked for between two
        steps, and shown to nobody.

        By default every attribute of the instance but ``episode_id``. Give None where the state is
        not in them alone (a process, a folder, a connection): a resumed run then starts the episode
        again.
        """
        slotted = any(vars(owner).get("__slots__") for owner in type(self).__mro__)
        return (
            None
            if slotted
            else {name: value for name, value in vars(self).items() if name != "episode_id"}
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` gave, on a fresh instance for the same task, in place of
        ``reset``.
        """
        vars(self).update(state)


def solution_of(task: Task, env: Env | None = None) -> tuple[Message, ...] | None:
    """The reference solution of a task; None where neither the environment nor the task gives one.

    Args:
        task: the problem.
        env: its environment after ``reset``; what its ``solution`` gives goes first.

    Raises:
        DataError: what is given is no solution.
    """
    given: Any = None if env is None else env.solution()
    if given is None:
        given = task.info.get("solution")
    if given is None:
        return None
    where = f"the solution of task {task.id!r}"
    turns = [given] if isinstance(given, str | Mapping) else given
    if not isinstance(turns, Sequence) or not turns:
        raise DataError(
            f"{where} must be a text or a list of the assistant's turns, each a text or a message "
            f"with content and tool_calls, got {shown(given, 200)}"
        )
    return tuple(
        _turn(turn, f"{where}: turn {number}") for number, turn in enumerate(turns)
    )


def _turn(turn: Any, where: str) -> Message:
    if isinstance(turn, str):
        return {"role": "assistant", "content": turn}
    if not isinstance(turn, Mapping) or turn.get("role", "assistant") != "assistant":
        raise DataError(
            f"{where} must be a text, or an assistant's message with content and tool_calls, got "
            f"{shown(turn, 200)}"
        )
    calls = turn.get("tool_calls") or ()
    if not isinstance(calls, Sequence):
        raise DataError(
            f"{where}: tool_calls must be a list of calls, got {shown(calls, 200)}"
        )
    message = {
        **turn,
        "role": "assistant",
        "tool_calls": [_call(call, number) for number, call in enumerate(calls)],
    }
    return stored_message(message, where)


def _call(call: Any, number: int) -> Any:
    """A call in OpenAI's shape; what is none is left for ``stored_message`` to name."""
    if not isinstance(call, Mapping):
        return call
    function = call.get("function") or {
        name: call[name] for name in ("name", "arguments") if name in call
    }
    return {
        "id": call.get("id") or f"call_{number}",
        "type": "function",
        "function": function,
    }
