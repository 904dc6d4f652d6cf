"""Unit tests of a policy's code: what passes, and what cannot be forged."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agentrl.envs.rewards.unit_tests import unit_tests
from agentrl.envs.score import Score
from agentrl.errors import RewardError

from .episodes import episode

TESTS = ["assert add(1, 2) == 3", "assert add('a', 'b') == 'ab'"]


async def scored(code: str, tests: Any = TESTS, **settings: Any) -> Score:
    info = {name: settings.pop(name, "") for name in ("test_setup", "code_setup")}
    said = f"Here it is:\n```python\n{code}\n```\nDone."
    return await unit_tests(episode(said, tests, info=info), **settings)


async def test_code_that_is_right_passes() -> None:
    score = await scored("def add(a, b):\n    print('noise')\n    return a + b")
    assert score == Score(1.0, {"passed": 2, "tests": 2, "problems": []})


async def test_the_nulls_of_a_table_are_no_tests_and_no_setup() -> None:
    said = "def add(a, b):\n    return a + b"
    score = await unit_tests(episode(said, TESTS, info={"tests": None, "test_setup": None}))
    assert score.value == 1.0


async def test_a_part_of_the_tests_counts_where_asked_for() -> None:
    score = await scored("def add(a, b):\n    return int(a) + int(b)", partial=True)
    assert (score.value, score.why["passed"]) == (0.5, 1)
    assert "ValueError: invalid literal" in score.why["problems"][0]


CHECK = """
def check(candidate):
    for n in range(3):
        assert candidate(n, 1) == n + 1
    first = candidate(1, 1)
    assert candidate(first, 1) == 3
check(add)
"""


async def test_a_function_that_checks_a_candidate_is_run_until_every_call_is_known() -> (
    None
):
    assert (await scored("def add(a, b):\n    return a + b", [CHECK])).value == 1.0
    assert (
        await scored("def add(a, b):\n    return a + 1 if a else 1", [CHECK])
    ).value == 1.0
    assert (await scored("def add(a, b):\n    return 2", [CHECK])).value == 0.0


async def test_tests_may_import_and_expect_exceptions() -> None:
    test = "try:\n    add(None, 1)\nexcept TypeError:\n    pass\nelse:\n    assert False"
    close = "assert math.isclose(add(0.1, 0.2), 0.3)"
    score = await scored(
        "def add(a, b):\n    return a + b", [test, close], test_setup="import math"
    )
    assert score.value == 1.0


async def test_a_class_of_a_test_calls_methods_and_compares_identities() -> None:
    test = (
        "class Box:\n    def __init__(self):\n        self.items = []\n"
        "    def put(self, one):\n        self.items.append(one)\n"
        "        return self.items[-1] is one\n"
        "box = Box()\nassert box.put(add(1, 2)) and box.items == [3]"
    )
    score = await scored("def add(a, b):\n    return a + b", [test])
    assert score == Score(1.0, {"passed": 1, "tests": 1, "problems": []})


FORGED = {
    "equal to everything": (
        "class Same:\n    def __eq__(self, other):\n        return True\n"
        "def add(a, b):\n    return Same()"
    ),
    "a number with its own equality": (
        "class Same(int):\n    def __eq__(self, other):\n        return True\n    __hash__ = None\n"
        "def add(a, b):\n    return Same(7)"
    ),
    "leaves with code 0": "import os\ndef add(a, b):\n    os._exit(0)",
    "leaves at once": "import os\nos._exit(0)",
    "raises what passes": "def add(a, b):\n    raise SystemExit(0)",
    "patches builtins": (
        "import builtins\nbuiltins.AssertionError = type('A', (Exception,), {})\n"
        "def add(a, b):\n    return 0"
    ),
    "writes verdicts": (
        "import json\nopen('verdicts.json', 'w').write('[[[true, \"\"], [true, \"\"]], []]')\n"
        "def add(a, b):\n    return 0"
    ),
    "writes to the channel": (
        "import os\nfor fd in range(3, 32):\n    try:\n"
        '        os.write(fd, b\'[0, "passed", true]\\n[[true,""],[true,""]]\\n\')\n'
        "    except OSError:\n        pass\ndef add(a, b):\n    return 0"
    ),
    "hides a module": "open('json.py', 'w').write('1/0')\ndef add(a, b):\n    return 0",
    "looks for what is expected": (
        "import os, sys\n"
        "def add(a, b):\n"
        "    texts = [open(name).read() for name in os.listdir('.')]\n"
        "    frame = sys._getframe()\n"
        "    while frame:\n"
        "        held = [*frame.f_globals.values(), *frame.f_locals.values()]\n"
        "        texts += [text for text in held if isinstance(text, str)]\n"
        "        frame = frame.f_back\n"
        "    found = [text for text in texts if 'assert ' + 'add(' in text]\n"
        "    return eval(found[0].partition('== ')[2].split()[0]) if found else None"
    ),
    "never ends": "def add(a, b):\n    while True:\n        pass",
    "gives what is no plain value": "def add(a, b):\n    return lambda: 3",
    "is no Python": "def add(a, b) return 3",
}


@pytest.mark.parametrize("code", FORGED.values(), ids=FORGED)
async def test_no_code_forges_a_pass(code: str) -> None:
    score = await scored(code, timeout_s=2.0, partial=True)
    assert (score.value, len(score.why["problems"])) == (0.0, 2)


RAW = """
import os
def tell(value):
    for fd in range(3, 32):
        try:
            os.write(fd, b'[0, "gave", ' + value + b']\\n')
        except OSError:
            continue
"""
# the code, and a test that it must not pass
SPOILERS = {
    "a loop without end": (
        "def add(a, b):\n    return 10**12",
        "assert sum(range(add(1, 2))) == 3",
    ),
    "memory": ("def add(a, b):\n    return 10**11", "assert [0] * add(1, 2) == 3"),
    "a huge number": ("def add(a, b):\n    return 10**5000", "assert add(1, 2) == 3"),
    "nested values": (
        "def add(a, b):\n    x = []\n    for _ in range(900):\n        x = [x]\n    return x",
        "assert str(add(1, 2)) == '3'",
    ),
    "nested text": (
        RAW + "def add(a, b):\n    tell(b'[' * 10**5)\n    return 0",
        "assert add(1, 2) == 3",
    ),
    "an infinite number": (
        RAW + "def add(a, b):\n    tell(b'[\"i\", 1e400]')\n    return 0",
        "assert add(1, 2) == 3",
    ),
    "no pair": (
        RAW + "def add(a, b):\n    tell(b'[[[]]]')\n    return 0",
        "assert add(1, 2) == 3",
    ),
    "a kind that is none": (
        RAW + "def add(a, b):\n    tell(b'[[\"?\", 3]]')\n    return 0",
        "assert add(1, 2) == 3",
    ),
    "the end of an iteration": (
        "def add(a, b):\n    raise StopIteration",
        "assert all(map(add, [1], [2]))",
    ),
    "the end of a search": (
        "def add(a, b):\n    raise StopIteration",
        "assert not any(x == 3 for x in map(add, [1], [2]))",
    ),
    "the end of calls": (
        "def add(a, b):\n    raise StopIteration",
        "assert list(iter(lambda: add(1, 2), 3)) == []",
    ),
    "the end of an asynchronous iteration": (
        "def add(a, b):\n    raise StopAsyncIteration",
        "try:\n    add(1, 2)\nexcept StopAsyncIteration:\n    pass",
    ),
}


@pytest.mark.parametrize(("code", "test"), SPOILERS.values(), ids=SPOILERS)
async def test_what_spoils_the_tests_is_wrong_and_no_failure(code: str, test: str) -> None:
    score = await scored(code, [test], timeout_s=1.0)
    assert (score.value, len(score.why["problems"])) == (0.0, 1)


@pytest.mark.slow
async def test_values_are_read_in_sandboxes_and_not_on_the_event_loop() -> None:
    # 15 MiB of results, which took the loop's thread 1.7 s
    code = "def add(a, b):\n    return [1] * (15 * 2**20 // 12)"
    before = time.thread_time()
    assert (await scored(code)).value == 0.0
    assert time.thread_time() - before < 0.5


async def test_the_output_of_a_program_is_kept_as_far_as_the_expected_one_reaches() -> None:
    tests = {"inputs": ["1"], "outputs": ["3"]}
    score = await scored("while True: print()", tests)
    assert (score.value, score.why["problems"]) == (
        0.0,
        ["output_limit: stdout passed the limit of 65538 bytes"],
    )


async def test_slow_code_is_wrong_before_the_rubrics_deadline() -> None:
    tests = {"inputs": ["1"] * 4, "outputs": ["3"] * 4}
    score = await scored("while True: pass", tests, timeout_s=1.0, total_s=1.5)
    first, _, *rest = score.why["problems"]
    assert first == "timeout: still running after 1 s"
    assert rest == ["timeout: still running after 0.01 s"] * 2


async def test_programs_are_told_by_what_they_print() -> None:
    tests = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7"]}
    right = "a, b = map(int, input().split())\nprint(a + b)"
    assert (await scored(right, tests)).value == 1.0
    assert (await scored("print(3)", tests, partial=True)).value == 0.5


@pytest.mark.parametrize(
    ("tests", "rule"),
    [
        (None, "needs the tests of task 't-1'"),
        ([3], "needs the tests of task 't-1'"),
        ({"inputs": ["1"], "outputs": []}, "as many inputs as outputs"),
        ({"inputs": "12", "outputs": "37"}, r"needs lists of .*, got '12' and '37'"),
        (
            ["assert add(1 =="],
            r"tests of task 't-1' fail before they call .* \(error: SyntaxError",
        ),
        (
            ["import absent\nassert add(1, 2) == 3"],
            "ModuleNotFoundError: No module named 'absent'",
        ),
        (
            ["assert add(1, 2) == 3\nimport absent"],
            "ModuleNotFoundError: No module named 'absent'",
        ),
        (["assert add(1, lambda: 2) == 3"], "Unplain: function is no plain value"),
        (
            ["assert add(1, 2) == 3\nassert add(1, lambda: 2) == 3"],
            "Unplain: function is no plain",
        ),
        (
            ["try:\n    add(print)\nexcept Exception:\n    pass"],
            "Unplain: builtin_function_or_",
        ),
        (["assert math.isclose(add(1, 2), 3)"], "AttributeError: 'function' object has no"),
        (["x = 1 / 0\nassert add(1, x) == 3"], "ZeroDivisionError: division by zero"),
        (
            ["assert add(1, 2) == 3", "assert LIMIT == 5"],
            r"\(AssertionError\); correct them",
        ),
        (
            ["def test_add():\n    assert add(1, 2) == 3"],
            "none of them calls a function or class of it",
        ),
    ],
)
async def test_tests_that_are_none_are_a_failure(tests: Any, rule: str) -> None:
    with pytest.raises(RewardError, match=rule):
        await scored("def add(a, b):\n    return a + b", tests)


async def test_a_setup_that_the_sandbox_cannot_run_is_a_failure() -> None:
    with pytest.raises(
        RewardError, match=r"'t-1' fail before they call .*ModuleNotFoundError"
    ):
        await scored("def add(a, b):\n    return a + b", test_setup="import absent")


@pytest.mark.parametrize("setup", ["import absent", "def f(:", "raise SystemExit(0)"])
async def test_a_setup_of_the_code_that_fails_is_a_failure(setup: str) -> None:
    with pytest.raises(
        RewardError, match=r"'t-1' fail before they call .*code_setup: \w+: "
    ):
        await scored("def add(a, b):\n    return a + b", code_setup=setup)


# the code, and a test that it leads into a fault which is the tests' own where no value is known
LED_ASTRAY = {
    "an import": ("raise ImportError('absent')", "add(1, 2)"),
    "an import behind a value": ("return 3", "if add(1, 2) == 3:\n    import absent"),
    "a module": ("return 'absent'", "__import__(add(1, 2))"),
    "an argument": ("return 3", "add(print if add(1, 2) == 3 else 1, 2)"),
    "a name": ("return 3", "assert add(1, 2) == 4 or nowhere.to_be_found"),
    "an exit": ("raise SystemExit(0)", "add(1, 2)"),
    "no further call": ("return 3", "assert add(1, 2) == 3\nassert add(2, 2) == 4"),
}


@pytest.mark.parametrize(("body", "test"), LED_ASTRAY.values(), ids=LED_ASTRAY)
async def test_no_code_makes_a_failure_of_its_tests(body: str, test: str) -> None:
    score = await scored(f"def add(a, b):\n    {body}", [test])
    assert (score.value, len(score.why["problems"])) == (0.0, 1)


RIGHT = {
    "a number of many digits": (
        "def f(n):\n    return -(10**n)",
        "assert f(5000) == -(10**5000)",
    ),
    "an error of its own": (
        "class Bad(ValueError):\n    pass\ndef f():\n    raise Bad('no')",
        "try:\n    f()\nexcept ValueError as error:\n    assert str(error) == 'no'",
    ),
    "an error that is made of more than a text": (
        "def f():\n    return b'\\xff'.decode()",
        "try:\n    f()\nexcept ValueError:\n    pass",
    ),
    "a name that an assert binds": (
        "def f(n):\n    return n",
        "assert (one := f(1)) == 1\nassert f(one + 1) == 2",
    ),
    "a test at random": (
        "def f(text):\n    return text[::-1]",
        "import random\nx = str(random.random())\nassert f(f(x)) == x",
    ),
}


@pytest.mark.parametrize(("code", "test"), RIGHT.values(), ids=RIGHT)
async def test_right_code_passes(code: str, test: str) -> None:
    assert await scored(code, [test]) == Score(
        1.0, {"passed": 1, "tests": 1, "problems": []}
    )


STACK = """
class Empty(IndexError):
    pass

class Stack:
    made = 0
    def __init__(self, *items):
        self.items = list(items)
        Stack.made += 1
    def push(self, item):
        self.items.append(item)
        return self
    add = push
    def count(self, item):
        return self.items.count(item)
    def pop(self):
        if not self.items:
            raise Empty('nothing is there')
        return self.items.pop()
    def __len__(self):
        return len(self.items)
    def __eq__(self, other):
        return self.items == other.items
    def __add__(self, other):
        return Stack(*self.items, *other.items)
    def __mul__(self, times):
        return Stack(*self.items * times)
    def __contains__(self, item):
        return item in self.items
    def __iter__(self):
        return iter(self.items)
    @staticmethod
    def of(text):
        return Stack(*text)
"""
NODES = """
class Node:
    def __init__(self, value, next=None):
        self.value, self.next = value, next

def reverse(head):
    last = None
    while head:
        head.next, last, head = last, head, head.next
    return last
"""
# the code, a test that it passes, and a test of the same kind that it does not
OBJECTS = {
    "a method": (
        "class Solution:\n    def add(self, a, b):\n        return a + b",
        "assert Solution().add(1, 2) == 3\nassert Solution().add(a=2, b=2) == 4",
        "assert Solution().add(1, 2) == 4",
    ),
    "a candidate": (
        "class Solution:\n    def add(self, a, b):\n        return a + b",
        "def check(candidate):\n    for n in range(50):\n        assert candidate(n, 1) == n + 1\n"
        "check(Solution().add)",
        "def check(candidate):\n    assert candidate(2, 1) == 2\ncheck(Solution().add)",
    ),
    "a state": (
        STACK,
        "s = Stack()\ns.push(1)\ns.push(1).push(2)\nassert s.pop() == 2\nassert s.pop() == 1\n"
        "assert len(s) == 1\ns.push(s.pop() + s.pop() if len(s) > 1 else 7)\nassert s.pop() == 7\n"
        "t = s.push(3)\nassert t is s and t == s and 3 in s and s.push(4).push(5) is not Stack(3)\n"
        "assert s.count(4) == 1 and t.add(6) is s and s.pop() == 6",
        "s = Stack(1, 1, 2)\nassert s.pop() == 2\nassert s.pop() == 2",
    ),
    "a loop that its results end": (
        STACK,
        "s, seen = Stack(1, 2, 3), []\nwhile s:\n    seen.append(s.pop())\n"
        "assert seen == [3, 2, 1]",
        "s, seen = Stack(1, 2, 3), []\nwhile s:\n    seen.append(s.pop())\n"
        "assert seen == [1, 2, 3]",
    ),
    "a loop until there is None": (
        STACK
        + "    def get(self):\n        return self.items.pop() if self.items else None",
        "for s in (Stack(1, 2), Stack(1, 3).push(2)):\n    seen = []\n    while True:\n"
        "        x = s.get()\n        if x is None:\n            break\n        seen.append(x)\n"
        "    assert seen[0] == 2 and seen[-1] == 1",
        "while Stack(1).get() is None:\n    pass\nassert False",
    ),
    "a context": (
        STACK
        + "    def __enter__(self):\n        return self\n    def __exit__(self, *of):\n"
        "        self.items.append(of)",
        "s = Stack(1)\nwith s as t:\n    t.push(3)\nassert list(s) == [1, 3, (None, None, None)]",
        "with Stack(1) as s:\n    assert s.pop() == 2",
    ),
    "operators": (
        STACK,
        "s = Stack(1) + Stack(2)\nassert list(s) == [1, 2]\nassert 2 in Stack(1, 2)\n"
        "assert s == Stack(1, 2) and isinstance(s, Stack) and not isinstance(3, Stack)\n"
        "assert not Stack()\nassert sorted(Stack(2, 1)) == [1, 2]\n"
        "assert (Stack(1) * 2).pop() == 1",
        "assert Stack(1) == Stack(2)",
    ),
    "what the class itself has": (
        STACK,
        "assert list(Stack.of('ab')) == ['a', 'b']\nStack()\nassert Stack.made == 2",
        "Stack()\nassert Stack.made == 2",
    ),
    "an exception of its own": (
        STACK,
        "try:\n    Stack().pop()\nexcept Empty as error:\n"
        "    assert str(error) == 'nothing is there'\n"
        "else:\n    assert False\ntry:\n    Stack().pop()\nexcept IndexError:\n    pass",
        "try:\n    Stack().pop()\nexcept KeyError:\n    pass",
    ),
    "objects of the test's making": (
        NODES,
        "head = Node(1, Node(2))\nhead.next.next = Node(3)\nlast = reverse(head)\nfound = []\n"
        "assert last.next.next.value == 1 and last.next.next is head\n"
        "while last:\n    found.append(last.value)\n    last = last.next\n"
        "assert found == [3, 2, 1]\n"
        "assert head.next is None",
        "assert reverse(Node(1, Node(2))).value == 1",
    ),
    "the same object": (
        "class Config:\n    one = None\n    def __new__(cls):\n"
        "        cls.one = cls.one or object.__new__(cls)\n        return cls.one",
        "assert Config() is Config()\nConfig().x = 3\nassert Config().x == 3",
        "assert Config() is not Config()",
    ),
    "a change in place": (
        "def turn(numbers, k):\n    numbers[:] = numbers[-k:] + numbers[:-k]",
        "x = [1, 2, 3]\nturn(x, 1)\nassert x == [3, 1, 2]\n"
        "turn(numbers=x, k=1)\nassert x == [2, 3, 1]",
        "x = [1, 2, 3]\nturn(x, 1)\nassert x == [1, 2, 3]",
    ),
    "a generator": (
        "def count(n=10**9):\n    yield from range(n)",
        "assert list(count(3)) == [0, 1, 2]\nx = count()\nassert next(x) == 0 and next(x) == 1\n"
        "assert [a for a, _ in zip(count(), 'ab')] == [0, 1]",
        "assert list(count(3)) == [1, 2, 3]",
    ),
    "a function that is given": (
        "def counter():\n    n = 0\n    def more():\n        nonlocal n\n        n += 1\n"
        "        return n\n    return more",
        "one, two = counter(), counter()\nassert one() == 1\nassert one() == 2\nassert two() == 1",
        "one = counter()\none()\nassert one() == 1",
    ),
    "a coroutine": (
        "import asyncio\nasync def add(a, b):\n    await asyncio.sleep(0)\n    return a + b",
        "import asyncio\nassert asyncio.run(add(1, 2)) == 3\nasync def main():\n"
        "    assert await add(await add(1, 2), 3) == 6\n"
        "    assert await asyncio.gather(add(1, 1)) == [2]\n"
        "asyncio.run(main())",
        "import asyncio\nassert asyncio.run(add(1, 2)) == 4",
    ),
    "members": (
        "import enum\nclass Colour(enum.Enum):\n    RED = 1\ndef mix(a):\n    return Colour(a)",
        "assert mix(1) == Colour.RED\nassert mix(1).name == 'RED'\nassert Colour.RED.value == 1",
        "assert Colour.RED == 1",
    ),
}


@pytest.mark.parametrize(("code", "right", "wrong"), OBJECTS.values(), ids=OBJECTS)
async def test_objects_stay_where_the_code_is(code: str, right: str, wrong: str) -> None:
    score = await scored(code, [right, wrong, right], partial=True)
    assert (score.why["passed"], len(score.why["problems"])) == (2, 1), score.why


LIAR = """
class Liar:
    def __eq__(self, other):
        return True
    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = startswith = count = __eq__
    __hash__ = None
    def __sub__(self, other):
        return 0
    __rsub__ = __sub__
class Sum(Liar):
    def itself(self, *_):
        return self
def add(a, b):
    if isinstance(a, list):
        a.clear()
        return []
    return Sum()
"""


@pytest.mark.parametrize(
    "test",
    [
        "assert add(1, 2) == 3",
        "assert 3 == add(1, 2)",
        "assert add(1, 2) < 3",
        "assert 3 >= add(1, 2)",
        "assert not add(1, 2) != 3",
        "assert Sum() == 3",
        "assert [add(1, 2)] == [3]",
        "assert add(1, 2) == add(2, 1)",
        "assert add(1, 2) <= add(2, 1)",
        "assert 3 in add(1, 2)",
        "assert add(1, 2).startswith('3')",
        "assert add(1, 2).count(3)",
        "assert Sum().itself(1, 2).count(3)",
        "asked = add(1, 2).startswith\nassert asked('3')",
        "assert abs(add(1, 2) - 3) < 1e-6",
        "assert abs(3 - add(1, 2)) < 1e-6",
        "assert abs(Sum().itself(1, 2) - 3) < 1e-6",
        "x = [2, 1]\nassert add(x, 2) == sorted(x)",
        "assert {'sum': Sum()} == {'sum': 3}",
    ],
)
async def test_no_object_says_itself_what_it_equals(test: str) -> None:
    assert (await scored(LIAR, [test])).value == 0.0


async def test_histories_do_not_meet() -> None:
    # the second text's operations are the first's up to one, and nothing of the first is seen
    first = "s = Stack()\ns.push(1)\nassert s.pop() == 1"
    second = "s = Stack()\ns.push(1)\nassert len(s) == 1 and Stack.made == 1"
    assert (await scored(STACK, [first, second, first])).value == 1.0


LEETCODE = """
from typing import Optional

class ListNode:
    def __init__(self, val=0, next=None):
        self.val, self.next = val, next
"""
HELPERS = """
def list_node(values):
    first = last = ListNode()
    for value in values:
        last.next = ListNode(value)
        last = last.next
    return first.next

def values_of(node):
    values = []
    while node and len(values) < 3000:
        values.append(node.val)
        node = node.next
    return values
"""


async def test_objects_of_a_class_that_both_sides_define_travel_by_value() -> None:
    code = (
        "class Solution:\n"
        "    def rest(self, head: Optional[ListNode], n) -> Optional[ListNode]:\n"
        "        for _ in range(n):\n            head = head.next\n        return head\n"
        "    def drop(self, node: ListNode) -> None:\n"
        "        node.val, node.next = node.next.val, node.next.next"
    )
    tests = [
        "rest = Solution().rest\n"
        "assert values_of(rest(list_node(range(2000)), 5)) == [*range(5, 2000)]",
        "ring = list_node([1, 2])\nring.next.next = ring\nsecond = Solution().rest(ring, 1)\n"
        "assert second.val == 2 and second.next.next is second",
        "x = list_node([1, 2, 3])\nSolution().drop(x.next)\nassert values_of(x) == [1, 3]",
        "assert Solution().rest(list_node([1]), 1) is None",
        "assert values_of(Solution().rest(list_node([1, 2]), 1)) == [1]",
    ]
    setups = {"test_setup": LEETCODE + HELPERS, "code_setup": LEETCODE}
    score = await scored(code, tests, partial=True, **setups)
    assert score.why == {"passed": 4, "tests": 5, "problems": ["AssertionError: "]}
    # the code has what is said to go before it, and nothing of the tests'
    score = await scored(code, tests, partial=True, test_setup=LEETCODE + HELPERS)
    assert score.why["problems"] == ["NameError: name 'Optional' is not defined"] * 5


async def test_no_value_stands_in_the_place_of_a_tests_own_method() -> None:
    setup = "class Box:\n    def equals(self, other):\n        return self.value == other"
    code = (
        "class Box:\n    pass\ndef box():\n    made = Box()\n    made.value = 3\n"
        "    made.equals = lambda other: True\n    return made"
    )
    tests = ["assert box().equals(3)", "assert box().equals(4)"]
    score = await scored(code, tests, partial=True, test_setup=setup)
    assert score.why == {"passed": 1, "tests": 2, "problems": ["AssertionError: "]}
