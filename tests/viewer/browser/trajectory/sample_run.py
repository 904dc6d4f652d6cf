"""Sample run: episodes that show every part of the trajectory page, and hostile ones.

- ``0-0-0``: two agents, a failed call, two versions, states, files, reasons, times, annotations.
- ``0-1-0``: another rollout of its group, whose last completion has a token a character.
- ``1-0-0``: hostile words in every place that holds words.
- ``2-0-0``: 32,000 tokens, with a planted token.
- ``3-0-0``: two agents, and a branch after its first turn.
- ``5-0-0``: colours of a terminal, mathematics, code, joiners.
- ``4-0-0``: 10 MB each of the model's, a tool's and a judge's words, and the largest state.
"""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from pathlib import Path

import PIL.Image

from agentrl.store import RunDirectory
from agentrl.types import Blob, Image, Message, Trajectory
from tests.viewer.browser.trajectory.episodes import (
    HOSTILE_MARKDOWN,
    HOSTILE_TEXT,
    POLLUTION,
    EpisodeMaker,
    call,
    learned,
    long_trajectory,
    make_tokenizer,
    trajectory,
    write_run,
)

TWEET = 1234567890123456789
"""No JavaScript number has this value."""

PLANTED = 9000
"""Place among the sampled tokens of ``2-0-0`` that the trainer found much less likely."""

BIG = 10_000_000
LARGEST_STATE = 1_000_000
LONG_NAME = "n" * 100_000

LONE = "half of a pair: \ud800. "

SVG = b"<svg xmlns='http://www.w3.org/2000/svg' onload='window.pwned=1'/>"

WORDS = """def solve(values): return sum(values) The answer is assistant user system python import
print result I will compute the sum of the first numbers and check. total += value * 2 for value in
values error Traceback (most recent call last): File "<string>", line 1 so it follows formula """

ANSWER = """I will *compute* the sum.

```python
def solve(n):
    return n * (n + 1) // 2
```

1. first, `solve`
2. then check with [the formula](https://example.org/gauss)

| n | sum |
|---|---|
| 1 | 1 |

> quoted words
"""


def png() -> bytes:
    """A picture of 3 by 2 pixels."""
    encoded = io.BytesIO()
    PIL.Image.new("RGB", (3, 2), (255, 0, 0)).save(encoded, "PNG")
    return encoded.getvalue()


def state(value: object) -> Blob:
    return Blob.of(json.dumps(value).encode())


def full_trajectory(maker: EpisodeMaker) -> Trajectory:
    system: Message = {
        "role": "system",
        "content": "You are careful. Use the `python` tool.",
    }
    question = "What is the **sum** of the first 100 numbers?"
    image = Image.read(png())
    parts = [{"type": "text", "text": question}, {"type": "image", "image": image}]
    user: Message = {"role": "user", "content": parts}
    code = "def solve(n):\n    return n * (n + 1) // 2\nprint(solve(100)"
    fault = 'File "<string>", line 3\nSyntaxError: the parenthesis was never closed'
    failed = call("python", {"code": code, "timeout": 5}, fault, "exception", 0, 0.31)
    first = maker.turn(
        0,
        None,
        [system, user],
        ANSWER,
        [failed],
        timings={"queue_s": 0.05, "step_at_s": 1.5, "step_s": 0.32},
        started_at=1000.0,
        state=state({"form": "grid", "cells": ["#####", "#@.X#", "#####"]}),
        files={"work/main.py": Blob.of(code.encode()), "notes.txt": Blob.of(b"draft\n")},
    )
    arguments = {
        "code": "print(5050)",
        "options": {"deep": [1, {"b": None}], "tweet": TWEET},
    }
    calls = [
        call("python", arguments, "5050\n", None, 1),
        call("search", {"query": "Gauss"}, "Carl Friedrich Gauss", None, 2, 0.5),
    ]
    second = maker.turn(
        1,
        0,
        [
            message
            for one in first.calls
            if one.result
            for message in [one.result.message()]
        ],
        "The parenthesis was not closed. Once more, 日本語 🎉.",
        calls,
        version=4,
        timings={"step_at_s": 0.9, "step_s": 0.7},
        started_at=1002.0,
        state=state(
            {"form": "table", "columns": ["n", "sum"], "rows": [[1, 1], [2, TWEET]]}
        ),
        files={"work/main.py": Blob.of((code + ")").encode()), "notes.txt": None},
    )
    critic = maker.turn(
        2,
        None,
        [{"role": "user", "content": "Criticise the answer 5050."}],
        "It is right.",
        agent="critic",
        timings={"decode_s": 0.5},
        started_at=1004.0,
    )
    last = maker.turn(
        3,
        1,
        [call.result.message() for call in second.calls if call.result],
        "The sum is **5050**.",
        version=4,
        timings={"decode_s": 0.4},
        started_at=1005.0,
        rewards={"format": 0.1},
        state=state({"form": "image", "base64": base64.b64encode(png()).decode()}),
        files={"plot.png": Blob.of(png())},
    )
    judge = [
        {"role": "user", "content": "Is 5050 the sum?"},
        {"role": "assistant", "content": "Yes: **5050**."},
    ]
    return trajectory(
        [first, second, critic, last],
        rewards={"correct": 1.0, "style": 0.5},
        reward=1.5,
        reasons={
            "correct": {"tests": "1 passed\n", "exit": 0, "of": TWEET},
            "style": {"judge": judge},
        },
        first_state=state({"form": "text", "text": "nothing yet"}),
        last_observed=({"role": "user", "content": "Thank you."},),
        info={
            "seats": {
                "main": {"train": True, "reward": 1.5},
                "critic": {"train": False, "reward": -0.5},
            }
        },
    )


def hostile_trajectory(maker: EpisodeMaker) -> Trajectory:
    words = HOSTILE_TEXT
    hostile: Message = {"role": "user", "content": HOSTILE_MARKDOWN}
    coloured: Message = {"role": "user", "content": words}
    shown = state({**POLLUTION, words: words, "form": words})
    first = maker.turn(
        0,
        None,
        [hostile, coloured],
        HOSTILE_MARKDOWN,
        [call(words, {**POLLUTION, words: words, "code": words, "command": words}, words)],
        agent=words,
        info=POLLUTION,
        observed_info={words: words},
        state=shown,
        files={
            words: Blob.of(words.encode()),
            "hostile.py": Blob.of(words.encode()),
            LONG_NAME: Blob.of(b"x"),
            "binary": Blob.of(b"\xff\xfe\x00 bad \xc3("),
            "picture.svg": Blob.of(SVG),
        },
    )
    big = maker.turn(
        1,
        0,
        [call.result.message() for call in first.calls if call.result],
        "ok",
        [call("python", {"code": "x"}, LONE + "y" * BIG, "exception", 1)],
        state=state({"form": "image", "media_type": "image/svg+xml", "base64": "PHN2Zy8+"}),
    )
    return trajectory(
        [first, big],
        group=1,
        rewards={words: 1.0, "__proto__": 1.0, LONG_NAME: 0.0},
        reasons={
            words: words,
            "__proto__": {"judge": words},
            "nested": {words: POLLUTION},
            LONG_NAME: {LONG_NAME: "z" * BIG},
        },
        info=POLLUTION,
        last_observed=(hostile,),
        last_info=POLLUTION,
    )


def branched_trajectory(maker: EpisodeMaker) -> Trajectory:
    asked: Message = {"role": "user", "content": "Find the sum."}
    tried = [call("python", {"code": "1"}, "1", None, 0)]
    first = maker.turn(0, None, [asked], "I will try.", tried)
    answered = [call.result.message() for call in tried if call.result]
    again: Message = {"role": "user", "content": "Try another way."}
    judged: Message = {"role": "user", "content": "Is it right?"}
    turns = [
        first,
        maker.turn(1, 0, answered, "It is 1."),
        maker.turn(2, 0, [*answered, again], "It is 5050."),
        maker.turn(3, None, [judged], "The second way is right.", agent="critic"),
    ]
    return trajectory(turns, group=3)


def big_trajectory(maker: EpisodeMaker) -> Trajectory:
    said = "m" * BIG
    told = call("python", {"code": "x"}, "t" * BIG)
    asked: Message = {"role": "user", "content": "Say much."}
    first = maker.turn(
        0,
        None,
        [asked],
        "short",
        state=state({"form": "text", "text": "s" * LARGEST_STATE}),
        files={"big.txt": Blob.of(b"f" * LARGEST_STATE), "bigger.txt": Blob.of(b"f" * BIG)},
    )
    first = replace(
        first, text=said, message={"role": "assistant", "content": said}, calls=(told,)
    )
    last = maker.turn(1, 0, [], "done", state=state({"words": "s" * LARGEST_STATE}))
    judge = [{"role": "user", "content": "j" * BIG}]
    return trajectory([first, last], group=4, reasons={"correct": {"judge": judge}})


BOARD = "\x1b[41mS\x1b[0mFFF\nFHFH\nFFFH\nHFF\x1b[1;32mG\x1b[0m\n"
"""A place of Gymnasium's FrozenLake, as its ``ansi`` rendering has it."""

FORMULAS = r"""The sum is $\frac{n(n+1)}{2}$ for every $n \in \mathbb{N}$, so it costs $5 and $10.

$$
\begin{aligned}
\sum_{i=1}^{100} i &= \frac{100 \cdot 101}{2} \\
- 0 &= \boxed{5050}
\end{aligned}
$$

\[ \left( \sqrt[3]{x_1^2 + 1} \right) \ge \begin{cases} 1 & x > 0 \\ 0 & \text{else} \end{cases} \]

Not understood: $\color{red}{x}$ and an end that is missing: $\frac{1}{2

```python
@cached
def total(numbers: list[int]) -> int:  # of all
    return sum(numbers) + 0x1F if numbers else "no'ne"
```

"""
JOINED = (
    "A family \N{MAN}\u200d\N{WOMAN}\u200d\N{GIRL}, \u0645\u06cc\u200c\u062e\u0648\u0627, "
    "hidden\u200djoiner."
)


def shown_trajectory(maker: EpisodeMaker) -> Trajectory:
    asked: Message = {"role": "user", "content": BOARD}
    log = "\x1b[32mok\x1b[0m 3 passed, \x1b[31;1m1 failed\x1b[0m, \x1b[43mwarned\x1b[0m\x1b[2J"
    script = 'for f in *.py; do\n  echo "$f" # each\ndone'
    turn = maker.turn(
        0,
        None,
        [asked],
        FORMULAS + JOINED,
        [
            call("python", {"code": "print(5050)  # the sum"}, log, None, 1),
            call("bash", {"command": script}, "{}", None, 2),
        ],
        state=state({"form": "text", "text": BOARD}),
        files={"work/main.py": Blob.of(b"import os\nx = 'a'  # b\n")},
    )
    cells = [["\x1b[44mA\x1b[0m", "B"], ["C", "\x1b[7mD"]]
    last = maker.turn(1, 0, [], "done", state=state({"form": "grid", "cells": cells}))
    return trajectory([turn, last], group=5)


def write_sample_run(folder: Path) -> RunDirectory:
    """The run that the page's tests look at."""
    tokenizer = make_tokenizer(WORDS * 20)
    maker = EpisodeMaker(tokenizer)
    full = full_trajectory(maker)
    other = replace(
        full.turns[0], text="Other words.", message={"role": "assistant", "content": "x"}
    )
    last = replace(
        full.turns[1], completion=(maker.policy("The answer is 5050.", apart=True),)
    )
    sibling = trajectory([other, last], rollout=1, rewards={"correct": 0.0}, reward=0.0)
    long = long_trajectory(maker, 32_000, group=2)
    episodes = [
        (full, learned(maker, full, 40)),
        (sibling, None),
        (hostile_trajectory(maker), None),
        (long, learned(maker, long, PLANTED)),
        (branched_trajectory(maker), None),
        (big_trajectory(maker), None),
        (shown_trajectory(maker), None),
    ]
    run = write_run(folder, tokenizer, episodes)
    fates = [{"to": "trained", "step": 1}, {"to": "dropped", "reason": HOSTILE_TEXT}]
    rows = [
        {"group_index": n, "rollout_indices": [0], **fate} for n, fate in enumerate(fates)
    ]
    run.ledger_path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return run
