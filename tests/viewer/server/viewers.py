"""Trajectories a byte a token, and a viewer that answers on a free port."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
from tokenizers import Tokenizer

from agentrl.errors import AgentRLError
from agentrl.types import (
    CallRecord,
    Segment,
    SegmentKind,
    Status,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    alternatives_side,
)
from agentrl.viewer.launch import Address, serve
from tests.kit.waiting import DEADLINE_S

TEXTS = ("What is 6 * 7?", "call 🎉", "42", "It is 42.")
"""Prompt, first completion, the tool's words, second completion; a byte a token."""


def make_trajectory(
    tokenizer: Tokenizer,
    group: int,
    rollout: int = 0,
    *,
    prompt: str = TEXTS[0],
    alternatives: str = "",
) -> Trajectory:
    """A question, a call of a tool, its output, an answer.

    Args:
        tokenizer: a byte a token.
        group, rollout: its indices.
        prompt: the question.
        alternatives: letters that the engine tells beside each sampled token, after that token.
    """

    def ids(text: str) -> np.ndarray:
        return np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def policy(text: str) -> Segment:
        tokens = ids(text)
        logprobs = np.full(tokens.size, -0.5, np.float32)
        likely = np.array([[own, *ids(alternatives)] for own in tokens])
        fall = np.tile(
            -0.5 - np.arange(likely.shape[1], dtype=np.float32), (tokens.size, 1)
        )
        side = alternatives_side(likely.astype(np.int32), fall) if alternatives else {}
        return Segment(SegmentKind.POLICY, tokens, logprobs, group, side=side)

    asked = {"role": "user", "content": prompt}
    call = ToolCall("c0", "python", {"code": "6*7"})
    result = ToolResult("c0", "python", "42", latency_s=0.25)
    first = Turn(
        0,
        None,
        (Segment(SegmentKind.PROMPT, ids(prompt)),),
        (policy(TEXTS[1] + "<end>"),),
        TEXTS[1],
        {"role": "assistant", "content": "", "tool_calls": [call.openai()]},
        observed=(asked,),
        calls=(CallRecord(call, None, result),),
    )
    second = Turn(
        1,
        0,
        (Segment(SegmentKind.OBSERVATION, ids(TEXTS[2])),),
        (policy(TEXTS[3] + "<end>"),),
        TEXTS[3],
        {"role": "assistant", "content": TEXTS[3]},
        observed=(result.message(),),
    )
    reward = float(rollout % 2)
    return Trajectory(
        Task(f"task-{group % 2}", (asked,), 42, "sums"),
        group,
        rollout,
        0,
        "train",
        (first, second),
        Status("terminated"),
        {"correct": reward},
        reward,
    )


class Client(httpx.Client):
    """Asks a viewer as a script does, by its token."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.root = f"http://127.0.0.1:{address.port}"
        super().__init__(
            base_url=self.root,
            headers={"Authorization": f"Bearer {address.token}"},
            timeout=DEADLINE_S,
        )

    def of_run(self, path: str = "", **params: object) -> httpx.Response:
        """Asks for something of the first run."""
        key = self.get("/api/runs").json()["runs"][0]["key"]
        return self.get(f"/api/runs/{key}{path}", params=params)


@contextmanager
def viewing(source: Path, **settings: object) -> Iterator[Address]:
    """A viewer on a free port, ended at the end of the block."""
    ended = threading.Event()
    ready = threading.Event()
    addresses: list[Address] = []
    failures: list[BaseException] = []

    def announce(address: Address) -> None:
        addresses.append(address)
        ready.set()

    def work() -> None:
        options = {"host": "127.0.0.1", "port": 0, "allow_hosts": (), **settings}
        try:
            serve(source, announce=announce, until=ended.wait, **options)
        except AgentRLError as error:
            failures.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert ready.wait(DEADLINE_S)
        if failures:
            raise failures[0]
        yield addresses[0]
    finally:
        ended.set()
        thread.join(DEADLINE_S)
    assert not thread.is_alive()
