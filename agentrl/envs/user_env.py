"""User environment: a conversation with a user, who is scripted or played by a model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from agentrl.envs.async_env import ENV_THREADS
from agentrl.envs.tool_env import ToolEnv
from agentrl.errors import DataError, EnvError, ServerError
from agentrl.llm import ChatClient, ChatServerSpec
from agentrl.tools import opened
from agentrl.types import Action, Message, Observation, StepResult, Task, load_object
from agentrl.types.messages import without_thoughts
from agentrl.types.user_code.wall import call_user, failed_as

END_WORD = "[END]"
"""What a user says to end the conversation."""


_ROLE = """\
You play a user who talks with an assistant. Who you are and what you want:

{instructions}

Write the user's next message, and nothing else. Write {end_word} once nothing is left to say.\
"""


class User(Protocol):
    """Talks with the policy.

    A reply depends on the conversation alone: a user who is asked again says nothing twice, and an
    episode goes on from a checkpoint.
    """

    def reply(self, conversation: Sequence[Message]) -> str | Awaitable[str | None] | None:
        """The next message.

        Args:
            conversation: what user and assistant said to each other, with these roles; never the
                assistant's thoughts, its calls, their answers or a system prompt.

        Returns:
            The message; None, or one that holds ``END_WORD``, ends the conversation.
        """
        ...


@dataclass(frozen=True, slots=True)
class ScriptedUser:
    """Says one line after the other, then ends the conversation.

    Args:
        lines: in order; the first one opens the conversation unless the task does.
        opened: whether the task's own message took the place of a line.
    """

    lines: Sequence[str]
    opened: bool = False

    def reply(self, conversation: Sequence[Message]) -> str | None:
        """See ``User.reply``."""
        said = sum(message["role"] == "user" for message in conversation) - self.opened
        return self.lines[said] if said < len(self.lines) else None


@dataclass(frozen=True, slots=True, eq=False)
class ModelUser:
    """A user whom a model plays.

    Args:
        client: asks it; shared by the episodes of a process.
        instructions: who the user is and what it wants; the policy never sees them.
        temperature: of sampling; None leaves it to the server.
        max_tokens: of a message.
    """

    client: ChatClient
    instructions: str
    temperature: float | None = None
    max_tokens: int = 512

    async def reply(self, conversation: Sequence[Message]) -> str:
        """See ``User.reply``.

        Raises:
            ServerError: its server failed for good, or gave no text.
        """
        role = _ROLE.format(instructions=self.instructions, end_word=END_WORD)
        # The model speaks as the assistant of its own conversation, which a user opens.
        turned: list[Message] = [
            {"role": "system", "content": role},
            {"role": "user", "content": "The conversation begins."},
        ]
        for message in conversation:
            if message["role"] == "user":
                turned.append({"role": "assistant", "content": message["content"]})
            else:
                turned.append({"role": "user", "content": message["content"]})
        answer = await self.client.chat(
            turned, max_tokens=self.max_tokens, temperature=self.temperature
        )
        text = without_thoughts(answer.text)
        if not text:
            spec = self.client.spec
            raise ServerError(
                f"model {spec.model!r} at {spec.base_url} plays the user and said nothing; see its "
                "log, or raise UserEnv.max_user_tokens"
            )
        return text


UserSource = User | Sequence[str] | str | Callable[[Task], Any]
"""A user, its lines, instructions of a user whom a model plays, or a function of the task that
gives one of these; text that names such a function, as ``file.py:name``.
"""


class UserEnv(ToolEnv):
    """A conversation with a user. A whole message without a call is said to the user, whose answer
    is the observation; calls are answered as by ``ToolEnv``, and the user sees nothing of them.

    The conversation terminates when the user ends it, or a tool does.

    Args:
        task: its messages open the conversation; without one of a user the user opens it.
        user: the user; by default ``task.info["user"]``, lines or instructions.
        server: who plays a user that has instructions: the fields of ``ChatServerSpec``.
        only_user_ends: the user alone ends the conversation: a call that asks for the end is
            answered, and ends nothing.
        max_user_tokens, user_temperature: of a model's messages.
        tools, settings: see ``ToolEnv``.

    Raises:
        EnvError: there is no user, or nobody to play it.
        DataError: ``task.info["user"]`` is neither lines nor instructions.
    """

    def __init__(
        self,
        task: Task,
        *,
        user: UserSource | None = None,
        server: ChatServerSpec | Mapping[str, Any] | None = None,
        only_user_ends: bool = False,
        max_user_tokens: int = 512,
        user_temperature: float | None = None,
        base_dir: Any = None,
        **settings: Any,
    ) -> None:
        speaks = any(message["role"] == "user" for message in task.messages)
        opening = task.messages or ({"role": "user", "content": ""},)
        super().__init__(replace(task, messages=opening), base_dir=base_dir, **settings)
        self.task = task
        if not task.messages:
            self._opening = tuple(m for m in self._opening if m["role"] == "system")
        self._client = None if server is None else _client(server)
        self._only_user_ends = only_user_ends
        self._max_user_tokens = max_user_tokens
        self._user_temperature = user_temperature
        self._user = self._made(user, base_dir, speaks)
        self.conversation: list[Message] = [
            m for m in task.messages if m["role"] in ("user", "assistant")
        ]
        """What user and assistant said to each other so far, as the user knows it."""

    async def reset(self, *, seed: int) -> Observation:
        """See ``ToolEnv.reset``; the user opens the conversation unless the task does."""
        observation = await super().reset(seed=seed)
        if any(message["role"] == "user" for message in self.conversation):
            return observation
        said = await self._reply()
        if said is None:
            raise EnvError(
                f"task {self.task.id!r}: the user must open the conversation, and said nothing; "
                "give it a line, or the task a user's message"
            )
        return replace(observation, messages=(*observation.messages, said))

    async def step(self, action: Action) -> StepResult:
        """The answers of tools, or of the user.

        Raises:
            ServerError: the user's server failed; the episode has no reward.
        """
        # A message that was cut by its length ends the episode, as ToolEnv's does, and is not said.
        if action.tool_calls or action.problems or action.finish_reason == "length":
            result = await super().step(action)
            if result.terminated and self._only_user_ends:
                return replace(result, terminated=False)
            return result
        self._num_turns += 1
        text = without_thoughts(str(action.message["content"] or ""))
        heard = [*self.conversation, Message(role="assistant", content=text)]
        said = await self._reply(heard)
        if said is None:
            return StepResult(Observation(), terminated=True)
        return StepResult(Observation(messages=(said,)))

    def state_dict(self) -> Mapping[str, Any] | None:
        """See ``ToolEnv.state_dict``; the user is made again."""
        state = super().state_dict()
        made = (
            "_user",
            "_client",
            "_only_user_ends",
            "_max_user_tokens",
            "_user_temperature",
        )
        return None if state is None else {k: v for k, v in state.items() if k not in made}

    async def _reply(self, heard: Sequence[Message] | None = None) -> Message | None:
        """The user's next message; what was heard and said counts once it has come."""
        heard = list(self.conversation if heard is None else heard)
        text = await call_user(
            partial(self._user.reply, tuple(heard)),
            failed=failed_as(EnvError, "the user raised"),
            in_thread=ENV_THREADS.run,
        )
        self.conversation = heard
        if text is None or END_WORD in text:
            return None
        said: Message = {"role": "user", "content": text}
        self.conversation = [*heard, said]
        return said

    def _made(self, source: Any, base_dir: Any, speaks: bool) -> User:
        given: Any = self.task.info.get("user") if source is None else source
        if (
            isinstance(given, str)
            and source is not None
            and ":" in given
            and " " not in given
        ):
            given = load_object(given, base_dir)
        if not hasattr(given, "reply") and callable(given):
            given = given(self.task)
        if hasattr(given, "reply"):
            found: User = given
            return found
        if isinstance(given, str):
            if self._client is None:
                raise EnvError(
                    f"task {self.task.id!r} has a user with instructions, and nobody plays it; "
                    "name a model by UserEnv.server, as {base_url: ..., model: ...}"
                )
            return ModelUser(
                self._client, given, self._user_temperature, self._max_user_tokens
            )
        if isinstance(given, list | tuple) and all(isinstance(line, str) for line in given):
            return ScriptedUser(tuple(given), speaks)
        raise DataError(
            f"task {self.task.id!r}: the user must be a list of lines, or text with instructions "
            f"for a model, got {given!r}; give UserEnv.user, or task.info['user']"
        )


def _client(server: ChatServerSpec | Mapping[str, Any]) -> ChatClient:
    """The client of a server, which the episodes of a process share."""
    spec = server if isinstance(server, ChatServerSpec) else ChatServerSpec(**server)
    return opened(("chat", spec), lambda: ChatClient(spec))
