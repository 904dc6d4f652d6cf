"""Query language: what a query box takes, parsed to SQL over the index.

    query    = either                       either = all { "or" all }
    all      = part { [ "and" ] part }      part   = [ "-" ] ( "(" either ")" | term )
    term     = NAME ":" values | NAME operator NUMBER | "text" ":" value | value
    values   = value { "," value } | NUMBER ".." NUMBER | "none" | "any"

A value is a word, or text in double quotes with ``\\"`` and ``\\\\`` for those two. Values never
become part of the SQL: they are its parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from agentrl.errors import ConfigError, did_you_mean
from agentrl.viewer.index.fields import FIELDS, SEPARATOR, TEXTS, Field, found_field, meant

_MAX_LENGTH = 2000
_MAX_DEPTH = 50
_LONGEST_TERM = 1000
"""A longer value is in no query."""
_TERM = re.compile(
    r"(?P<name>[A-Za-z_]\w*(?:\.[^\s:<>=!()\"]+)?)(?P<operator>:|<=|>=|!=|<|>|=)", re.ASCII
)
_NUMBER = re.compile(
    r"(?P<digits>-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)(?P<unit>[kKM]?)", re.ASCII
)
_RANGE = re.compile(r"(?P<low>.*?)\.\.(?P<high>.*)")
_WORD = re.compile(r"[^\s()\"]+")
_QUOTED = re.compile(r'"((?:\\["\\]|[^"])*+)"')
_UNITS = {"": 1, "k": 1000, "K": 1000, "M": 1_000_000}
_EXAMPLE = 'env:code reward<0.5 tool_errors>=2 text:"No such file"'


class QueryError(ConfigError):
    """A query that is none.

    Args:
        rule: what a query must have there.
        position: of the fault in the query, from 1.
        found: what stands there; empty at the end.
        remedy: what to write instead.
    """

    def __init__(self, rule: str, *, position: int, found: str, remedy: str) -> None:
        shown = repr(found) if found else "the end of the query"
        super().__init__(f"query, position {position}: {rule}, found {shown}; {remedy}")
        self.position = position
        self.found = found
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed query.

    Args:
        sql: a condition over the index's table; a search for text reads the table ``text_match``
            (``needle``, ``trajectory``), which must hold every needle of ``texts``.
        parameters: of the condition, in order.
        texts: what is searched for in the text of trajectories.
    """

    sql: str
    parameters: tuple[str | float, ...]
    texts: tuple[str, ...]


class _Value(NamedTuple):
    text: str
    position: int
    quoted: bool

    def refused(self, rule: str, remedy: str) -> QueryError:
        return QueryError(rule, position=self.position, found=self.text, remedy=remedy)


def parse_query(text: str, fields: Mapping[str, Field] | None = None) -> Query:
    """The condition that a query stands for; an empty query holds for all.

    Args:
        text: the query.
        fields: those of the run, by name; where None, of a number that runs name themselves no
            trajectory has a value.

    Raises:
        QueryError: the text is no query.
    """
    if len(text) > _MAX_LENGTH:
        raise QueryError(
            f"a query must have at most {_MAX_LENGTH} characters",
            position=_MAX_LENGTH + 1,
            found=f"{len(text)} characters",
            remedy="shorten it",
        )
    return _Parser(text, fields).query()


class _Parser:
    """Reads a query from left to right; each method reads what it is named for and returns SQL."""

    def __init__(self, text: str, fields: Mapping[str, Field] | None) -> None:
        self._text = text
        self._fields = FIELDS if fields is None else fields
        self._takes_any = fields is None
        self._at = 0
        self._depth = 0
        self._parameters: list[str | float] = []
        self._texts: list[str] = []

    def query(self) -> Query:
        self._skip_spaces()
        if self._at == len(self._text):
            return Query("1", (), ())
        sql = self._either()
        if self._at < len(self._text):
            # _either ends at the end, or before ")"
            raise self._error("a closing parenthesis needs an opening one", "remove it")
        return Query(sql, tuple(self._parameters), tuple(dict.fromkeys(self._texts)))

    def _either(self) -> str:
        parts = [self._all()]
        while self._word_is("or"):
            parts.append(self._all())
        return _joined(parts, " OR ")

    def _all(self) -> str:
        parts = [self._part()]
        while self._at < len(self._text) and self._text[self._at] != ")":
            if self._peek_word().lower() == "or":
                break
            self._word_is("and")
            parts.append(self._part())
        return _joined(parts, " AND ")

    def _part(self) -> str:
        self._skip_spaces()
        if self._at == len(self._text):
            raise self._error("a condition must follow", f"such as {_EXAMPLE}")
        if self._peek_word().lower() in ("or", "and"):
            raise self._error(
                "a condition must stand on both sides", 'to search for the word, write "or"'
            )
        character = self._text[self._at]
        if character == "-":
            self._at += 1
            if self._at == len(self._text) or self._text[self._at].isspace():
                raise self._error(
                    "'-' must stand before a condition", "write -status:failed"
                )
            # a condition on a value that is missing does not hold, so its contrary does
            return f"({self._nested(self._part)} IS NOT TRUE)"
        if character != "(":
            return self._term()
        opened = self._at
        self._at += 1
        sql = self._nested(self._either)
        if self._at == len(self._text):
            self._at = opened
            raise self._error("an opening parenthesis needs a closing one", "add ')'")
        self._at += 1
        self._skip_spaces()
        return sql

    def _nested(self, read: Callable[[], str]) -> str:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._at -= 1
            raise self._error(
                f"a query may nest {_MAX_DEPTH} deep at most", "remove some parentheses"
            )
        sql = read()
        self._depth -= 1
        return sql

    def _term(self) -> str:
        start = self._at
        named = _TERM.match(self._text, start)
        if named is None:
            return self._search(self._value())
        name = named["name"]
        self._at = named.end("name")
        operator = named["operator"]
        if name == "text":
            self._assert_colon(name, operator)
            self._at = named.end()
            return self._search(self._value())
        field = self._field(name, start)
        if not field.is_number and operator != "!=":
            self._assert_colon(name, operator)
        self._at = named.end()
        if field.is_number:
            return self._number(name, field, operator)
        sql = _joined([self._one(name, field, value) for value in self._values()], " OR ")
        return f"({sql} IS NOT TRUE)" if operator == "!=" else sql

    def _field(self, name: str, start: int) -> Field:
        if name in self._fields:
            return self._fields[name]
        found = found_field(name)
        if found is not None and self._takes_any:
            return replace(found, operand="NULL")
        self._at = start
        remedy = meant(
            name, [*self._fields, "text"], "; to search for text, put it in quotes"
        )
        if name in TEXTS:
            remedy = "; a text is searched by text:WORD"
        raise QueryError(
            "a field must be known",
            position=start + 1,
            found=self._peek_word(),
            remedy=remedy.removeprefix("; "),
        )

    def _assert_colon(self, name: str, operator: str) -> None:
        if operator not in (":", "="):
            raise self._error(
                f"{name} is text, which is compared by ':' alone", f"write {name}:VALUE"
            )

    def _number(self, name: str, field: Field, operator: str) -> str:
        value = self._value()
        if operator in (":", "=") and value.text in ("none", "any"):
            return f"({field.sql} IS {'NULL' if value.text == 'none' else 'NOT NULL'})"
        ranged = _RANGE.fullmatch(value.text)
        if (
            ranged is not None
            and operator in (":", "=")
            and (ranged["low"] or ranged["high"])
        ):
            return self._range(name, field, ranged, value)
        sign = "=" if operator == ":" else operator
        self._parameters.append(self._parsed(name, value.text, value))
        return f"({field.sql} {sign} ?)"

    def _range(self, name: str, field: Field, ranged: re.Match[str], value: _Value) -> str:
        sides = {">=": ranged["low"], "<=": ranged["high"]}
        given = {sign: bound for sign, bound in sides.items() if bound}
        self._parameters += [self._parsed(name, bound, value) for bound in given.values()]
        if len(given) == 2:
            return f"({field.sql} BETWEEN ? AND ?)"
        (sign,) = given
        return f"({field.sql} {sign} ?)"

    def _parsed(self, name: str, text: str, value: _Value) -> float:
        found = _NUMBER.fullmatch(text)
        if found is None:
            remedy = f"write {name}:10, {name}:10..20 or {name}>=10"
            raise value.refused(f"{name} must be a number", remedy)
        number = float(found["digits"]) * _UNITS[found["unit"]]
        return int(number) if number.is_integer() and abs(number) < 2**53 else number

    def _one(self, name: str, field: Field, value: _Value) -> str:
        text = value.text
        if not value.quoted and text in ("none", "any"):
            return f"(coalesce({field.sql}, '') {'=' if text == 'none' else '<>'} '')"
        if not value.quoted and "*" in text:
            self._parameters.append(_glob(text, field))
            return f"({field.sql} GLOB ?)"
        if field.choices and text not in field.choices:
            remedy = did_you_mean(text, field.choices, "choose one").removeprefix("; ")
            raise value.refused(f"{name} must be one of {', '.join(field.choices)}", remedy)
        if field.kind == "list":
            self._parameters.append(f"{SEPARATOR}{text}{SEPARATOR}")
            return f"(instr({field.sql}, ?) > 0)"
        self._parameters.append(text)
        return f"({field.sql} = ?)"

    def _search(self, value: _Value) -> str:
        if not value.text.strip():
            rule = "text to search for must have a character"
            raise value.refused(rule, 'write text:"No such file"')
        self._texts.append(value.text)
        self._parameters.append(value.text)
        return "(key IN (SELECT trajectory FROM text_match WHERE needle = ?))"

    def _values(self) -> Sequence[_Value]:
        """What follows a field's colon: a word is split at its commas."""
        value = self._value()
        if value.quoted:
            return (value,)
        parts = [_Value(part, value.position, False) for part in value.text.split(",")]
        if any(not part.text for part in parts):
            remedy = 'remove the comma, or quote the value: "a,b"'
            raise value.refused("a list of values must have no empty one", remedy)
        return parts

    def _value(self) -> _Value:
        start = self._at
        if start < len(self._text) and self._text[start] == '"':
            value = _Value(self._quoted(), start + 1, True)
        else:
            found = _WORD.match(self._text, start)
            if found is None:
                raise self._error("a value must follow", f"such as {_EXAMPLE}")
            self._at = found.end()
            value = _Value(found[0], start + 1, False)
        self._skip_spaces()
        return value

    def _quoted(self) -> str:
        start = self._at
        found = _QUOTED.match(self._text, start)
        if found is None:
            raise QueryError(
                "a quotation must end",
                position=start + 1,
                found=self._text[start:],
                remedy='add a closing "',
            )
        self._at = found.end()
        return re.sub(r'\\(["\\])', r"\1", found[1])

    def _peek_word(self) -> str:
        found = _WORD.match(self._text, self._at)
        return found[0] if found else ""

    def _word_is(self, word: str) -> bool:
        if self._peek_word().lower() != word:
            return False
        self._at += len(word)
        self._skip_spaces()
        return True

    def _skip_spaces(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1

    def _error(self, rule: str, remedy: str) -> QueryError:
        found = self._peek_word() or self._text[self._at : self._at + 1]
        return QueryError(rule, position=self._at + 1, found=found, remedy=remedy)


def _joined(parts: Sequence[str], word: str) -> str:
    return parts[0] if len(parts) == 1 else f"({word.join(parts)})"


def term(name: str, value: str) -> str:
    """A term of a query that holds for exactly this value; empty where it is too long for one."""
    if not value:
        return f"{name}:none"
    if len(value) > _LONGEST_TERM:
        return ""
    return f"{name}:{quoted(value)}"


def _glob(text: str, field: Field) -> str:
    """A pattern in which ``*`` alone is special."""
    pattern = text.replace("[", "[[]").replace("?", "[?]")
    return f"*{SEPARATOR}{pattern}{SEPARATOR}*" if field.kind == "list" else pattern


def quoted(text: str) -> str:
    """``text`` as one value of a query, whatever it holds."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
