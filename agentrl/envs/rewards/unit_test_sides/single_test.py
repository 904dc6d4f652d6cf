"""Single test: one of a task's tests, as far as the results that are known let it run."""

from __future__ import annotations

import ast
import builtins
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import RESULTS
from .plain_values import Unplain, packed, unpacked
from .stand_ins import (
    Name,
    Pending,
    Proxy,
    Unknown,
    is_class,
    method_of,
    name_of,
    same,
    stand_in,
)

_MOST_WAITS = 2000
# Loops of a test's would take them for the end of what they go through (PEP 479).
_ENDS = StopIteration, StopAsyncIteration


class Enough(BaseException):
    """A loop that only a result ends has gone so far in this round."""


class Results:
    """The operations that were asked for, and what they gave.

    Args:
        calls: the operations; those that are missing are added.
        lines: what the code's side wrote.
        lost: why a result is not there.
    """

    def __init__(self, calls: list[Any], lines: Sequence[bytes], lost: str) -> None:
        self.calls = calls
        self.known = len(calls)
        self.numbers = {json.dumps(call): number for number, call in enumerate(calls)}
        self.lost = "raised", [["RuntimeError"], lost], None
        self.made: list[Any] = [None] * self.known
        for line in lines:
            # The code may have written it: what it gives or raises is all that it can choose.
            try:
                number, kind, value, changed = json.loads(line)
                if self.made[number] is None and number >= 0 and kind in RESULTS:
                    self.made[number] = kind, value, changed
            except Exception:  # noqa: BLE001 - boundary: a line of the code's own is none of ours
                continue

    def number(self, call: list[Any]) -> int:
        number = self.numbers.setdefault(json.dumps(call), len(self.calls))
        if number == len(self.calls):
            self.calls.append(call)
        return number


def verdict(source: str, results: Results) -> tuple[bool, str] | None:
    """Whether a text passes, and else why it does not; None where results are missing."""
    text = SingleTest(source, results, has_history=False)
    found = text.run()
    if text.needs_history and not text.has_history:
        return SingleTest(source, results, has_history=True).run()
    return found


class SingleTest:
    """What the run of a text has come to.

    Args:
        source: its Python.
        results: what is known.
        has_history: each of its operations goes on from the one before.
    """

    def __init__(self, source: str, results: Results, *, has_history: bool) -> None:
        self.results = results
        self.tree = ast.parse(source)
        free = _names_of(self.tree) - set(_bound(self.tree)) - set(dir(builtins))
        nodes = list(ast.walk(self.tree))
        caught = [node.type for node in nodes if isinstance(node, ast.ExceptHandler)]
        named = {name for kind in caught if kind for name in _names_of(kind)} & free
        self.errors: dict[str, type] = {
            name: type(name, (Exception,), {}) for name in named
        }
        self.has_history = has_history or any(is_class(name) for name in free - named)
        self.classes = sorted(node.name for node in nodes if isinstance(node, ast.ClassDef))
        self.space: dict[str, Any] = {name: stand_in(self, name) for name in free}
        self.space.update(self.errors, __name__="tests", __unknown__=Unknown)
        self.space.update(__method_of__=method_of, __same__=same)
        self.objects: dict[tuple[Name, bool], Proxy] = {}
        self.last = -1
        self.waits = 0
        self.needs_history = False
        # whether an object that comes is of the test's own making
        self.makes = False

    def run(self) -> tuple[bool, str] | None:
        tree = ast.fix_missing_locations(_Soft().visit(self.tree))
        code = compile(tree, "tests.py", "exec", dont_inherit=True)
        # the same calls in each round
        random.seed(0)
        problem = None
        try:
            exec(code, self.space)
        except (Unknown, Enough):
            pass
        except BaseException as error:  # noqa: BLE001 - boundary: it is the test's verdict
            problem = error
        # an assert that asked for a call may have made what a later line lacks
        if problem and (not self.waits or isinstance(problem, Unplain | ImportError)):
            return False, f"{type(problem).__name__}: {problem}"[:300]
        return None if self.waits else (True, "")

    def unknown(self) -> Unknown:
        self.wait()
        return Unknown()

    def wait(self) -> None:
        # a loop that only a result ends, as one until there is None, goes so far in a round
        self.waits += 1
        if self.waits > _MOST_WAITS:
            raise Enough

    def ask(
        self,
        verb: str,
        target: Any,
        args: Sequence[Any] = (),
        keywords: Mapping[str, Any] | None = None,
    ) -> Any:
        """What an operation gave.

        Raises:
            Unknown: an object, which the text must have a history for.
            Exception: what the operation raised.
        """
        arguments = packed([args, keywords or {}], self.classes, name_of)
        parent = self.last if self.has_history else None
        number = self.results.number([parent, verb, target, arguments, self.classes])
        if self.has_history:
            self.last = number
        if number >= self.results.known:
            self.wait()
            return Pending(
                self, (number, 0) if verb == "call" and is_class(target) else None
            )
        kind, value, changed = self.results.made[number] or self.results.lost
        if kind == "object":
            self.needs_history = True
            raise self.unknown()
        if kind == "raised":
            raise self.raised(*value)
        of_class = is_class(target if verb == "call" else target[0])
        self.makes = of_class and verb in ("call", "get")
        [value] = unpacked(value, self.named, self.blank)
        # what computes something from its argument, and changes that too, could make both agree
        if changed is not None and value is None:
            self.take_over(changed, args, keywords or {})
        return _once(value) if kind == "awaited" else value

    def named(self, name: Name) -> Proxy:
        key = name, self.makes
        if key not in self.objects:
            self.objects[key] = Proxy(self, *key)
        return self.objects[key]

    def blank(self, name: str) -> Any:
        return object.__new__(self.space[name])

    def raised(self, names: Sequence[str], message: str) -> BaseException:
        """An exception of the names that one of the code's and its bases have."""
        kinds: list[type] = []
        for name in names:
            kind = self.errors.get(name) or getattr(builtins, name, None)
            if isinstance(kind, type) and issubclass(kind, _ENDS):
                break
            if isinstance(kind, type) and issubclass(kind, Exception):
                kinds.append(kind)
                if name not in self.errors:
                    break
        try:
            kind = type(kinds[0].__name__, tuple(kinds), {}) if kinds[1:] else kinds[0]
            error: BaseException = kind(message)
        except (IndexError, TypeError):
            # made of more than a text, as a UnicodeDecodeError is; its base follows
            return self.raised(names[1:], message) if names else RuntimeError(message)
        return error

    def take_over(
        self, changed: list[Any], args: Sequence[Any], keywords: Mapping[str, Any]
    ) -> None:
        """The arguments become what a call changed in place."""
        new_args, new_keywords = unpacked(changed, self.named, self.blank)
        # the code may have told fewer
        for old, new in zip(args, new_args, strict=False):
            self.change(old, new)
        for name, old in keywords.items():
            self.change(old, new_keywords.get(name))

    def change(self, old: Any, new: Any) -> None:
        if isinstance(old, list) and isinstance(new, list):
            old[:] = new
        elif isinstance(old, dict | set) and type(old) is type(new) and old != new:
            old.clear()
            old.update(new)
        elif isinstance(old, bytearray) and isinstance(new, bytes):
            old[:] = new
        elif type(old).__name__ in self.classes and type(old) is type(new):
            vars(old).clear()
            vars(old).update(vars(new))


async def _once(value: Any) -> Any:
    return value


class _Soft(ast.NodeTransformer):
    """A statement whose call is not known yet does not keep the next one from being asked for;
    ``is`` compares objects by their names; a method is not asked for before it is called. The
    names that stand for these end with underscores, so that no class makes them private.
    """

    def soft(self, node: Any) -> ast.AST:
        node = self.generic_visit(node)
        handler = ast.ExceptHandler(ast.Name("__unknown__", ast.Load()), None, [ast.Pass()])
        return ast.Try([node], [handler], [], [])

    visit_Assert = visit_Assign = soft  # noqa: N815 - names of ast
    visit_AnnAssign = visit_AugAssign = soft  # noqa: N815

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        # a text there may be what must come first
        return node if isinstance(node.value, ast.Constant) else self.soft(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if [type(one) for one in node.ops] not in ([ast.Is], [ast.IsNot]):
            return node
        sides = [node.left, *node.comparators]
        call = ast.Call(ast.Name("__same__", ast.Load()), sides, [])
        return call if isinstance(node.ops[0], ast.Is) else ast.UnaryOp(ast.Not(), call)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr[:2] != "__":
            of = [called.value, ast.Constant(called.attr)]
            node.func = ast.Call(ast.Name("__method_of__", ast.Load()), of, [])
        return node


def _bound(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name


def _names_of(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
