"""Pythonic parser: a list of calls in Python's syntax, ``[name(key="value"), ...]``.

The format is that of Meta's model cards for Llama 3.2 and 4, which may put the list between
``<|python_start|>`` and ``<|python_end|>``, and of LFM2's templates, which put it between
``<|tool_call_start|>`` and ``<|tool_call_end|>``. Values are literals; nothing is executed.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from agentrl.guards.parsing import JSONFault
from agentrl.guards.secret_mask import beginning
from agentrl.tools.parsers.reading import (
    Call,
    CallFault,
    CallReading,
    FormatParser,
    Marks,
    whole_json,
)
from agentrl.types import ToolSpec

_OPENS = ("<|python_start|>", "<|tool_call_start|>")
_CLOSES = ("<|python_end|>", "<|tool_call_end|>")
_FORM = '[NAME(KEY="value", ...), ...]'
_OPENING = "|".join(map(re.escape, _OPENS))
_CALLS = re.compile(
    rf"(?:{_OPENING})\s*(?=\[)|{_OPENING}|^[ \t]*(?=\[\s*[A-Za-z_][\w.]*\()", re.MULTILINE
)
_END = re.compile(rf"\s*(?:{'|'.join(map(re.escape, _CLOSES))})")
_PIECE = re.compile(
    r"""[\[({\])},]|"(?:[^"\\\n]|\\.)*+"|'(?:[^'\\\n]|\\.)*+'|["']""", re.DOTALL
)
_LONGEST = 16 * 1024
"""Characters of a list that Python's own parser is given: more would hold the event loop up."""
_DEEPEST = 32
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}


class PythonicParser(FormatParser):
    """Reads lists of calls that begin a line or follow a mark such as ``<|python_start|>``; other
    text is the content.
    """

    marks = Marks(opens=(*_OPENS, "["), others=_CLOSES)
    opening = _CALLS
    before = "["
    counted = _OPENS

    def read(
        self, text: str, start: int, reading: CallReading, tools: Sequence[ToolSpec]
    ) -> int:
        """A list, and its closing mark."""
        raw_start = start
        start = _CALLS.match(text, raw_start).end()  # type: ignore[union-attr] # it was found
        stops = _elements(text, start) if text.startswith("[", start) else []
        if not stops:
            behind = _CALLS.search(text, max(start, raw_start + 1))
            end = behind.start() if behind else len(text)
            detail = f"the list of calls is not closed; write it as {_FORM}"
            reading.problem("unclosed", detail, text[raw_start:end])
            return end
        begin = start + 1
        for stop in stops:
            if reading.full:
                break
            written = text[begin : stop - 1]
            # A comma may stand behind the last one.
            if written.strip() or len(stops) == 1:
                reading.add(text[raw_start:stop], partial(_call, written.strip()))
                raw_start = stop
            begin = stop
        closing = _END.match(text, stops[-1])
        return closing.end() if closing else stops[-1]


def _elements(text: str, start: int) -> list[int]:
    """The positions behind the comma or bracket that ends each element of the list at ``start``;
    none where it is not closed.
    """
    depth = 0
    stops: list[int] = []
    for piece in _PIECE.finditer(text, start):
        found = piece.group()
        if found in ("[", "(", "{"):
            depth += 1
        elif found in ("]", ")", "}"):
            depth -= 1
            if depth == 0:
                return [*stops, piece.end()]
        elif found == "," and depth == 1:
            stops.append(piece.end())
        elif found in ('"', "'"):
            # A string that its line does not close.
            return []
        if depth > _DEEPEST:
            return []
    return []


def _call(written: str) -> Call:
    """One call.

    Raises:
        CallFault: it is none, or has another argument than literals by name.
    """
    if len(written) > _LONGEST:
        raise CallFault(
            "bad_arguments",
            f"a call may have {_LONGEST} characters, got {len(written)}; pass less at once",
        )
    try:
        return python_call(written, _WORDS)
    except ValueError as fault:
        raise CallFault(
            "malformed_json", f"the call cannot be read: {fault}; write it as {_FORM}"
        ) from None


def python_call(written: str, words: Mapping[str, bool | None]) -> Call:
    """The call that an expression of Python is.

    Args:
        written: the expression; its length is the caller's to bound.
        words: names that stand for values.

    Raises:
        ValueError: it is none, or has another argument than literals by name, each once.
    """
    try:
        call = ast.parse(written, mode="eval").body
        if not isinstance(call, ast.Call):
            raise ValueError("it is no call")
        name = ast.unparse(call.func)
        if not _DOTTED.fullmatch(name):
            raise ValueError(f"{beginning(name, 40)!r} is no tool's name")
        if call.args or not all(keyword.arg for keyword in call.keywords):
            raise ValueError("arguments are passed by name, as KEY=VALUE")
        arguments: dict[str, Any] = {}
        for one in call.keywords:
            if str(one.arg) in arguments:
                raise ValueError(f"the argument {one.arg!r} is given twice")
            arguments[str(one.arg)] = _literal(one, words)
        return name, arguments
    except SyntaxError as fault:
        raise ValueError(fault.msg) from None
    # Python's parser raises either for what is nested too deep.
    except (RecursionError, MemoryError) as fault:
        raise ValueError(str(fault)) from None


def _literal(keyword: ast.keyword, words: Mapping[str, bool | None]) -> Any:
    try:
        text = _json(keyword.value, words)
    except (ValueError, TypeError):
        # Python's own words name an address in memory.
        raise ValueError(
            f"{keyword.arg} must be a literal, such as 'x', 1 or [1, 2]"
        ) from None
    try:
        # What is refused of other formats is refused here.
        return whole_json(text)
    except JSONFault as fault:
        raise ValueError(f"{keyword.arg} is no valid JSON: {fault}") from None


def _json(node: ast.expr | None, words: Mapping[str, bool | None]) -> str:
    """A literal as JSON, with all the keys that are written."""
    match node:
        case ast.Name(id=word) if word in words:
            return json.dumps(words[word])
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return f"[{', '.join(_json(item, words) for item in items)}]"
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            written = (
                f"{_json(key, words)}: {_json(value, words)}" for key, value in pairs
            )
            return f"{{{', '.join(written)}}}"
        case ast.Constant(value=value):
            return json.dumps(value, allow_nan=False)
        case ast.UnaryOp():
            return json.dumps(ast.literal_eval(node), allow_nan=False)
    raise ValueError("it is no literal")
