"""Plain values: numbers, texts, bytes and containers as JSON, with names for objects that stay."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

_CONTAINERS: dict[str, type[Any]] = {"l": list, "t": tuple, "s": set, "z": frozenset}


class Unplain(BaseException):
    """A value that cannot travel. No handler of a test's takes it for what it waits for."""


class _Packing:
    """One message: its values, and a table of the records that they lead to."""

    def __init__(self, classes: Collection[str], name_of: Callable[[Any], Any]) -> None:
        self.classes = classes
        self.name_of = name_of
        self.records: list[Any] = []
        self.places: dict[int, int] = {}

    def pack(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        number = _number(value)
        if number is not None:
            return number
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, bytes | bytearray):
            return ["b", list(bytes(value))]
        for name, container in _CONTAINERS.items():
            if isinstance(value, container):
                return [name, [self.pack(one) for one in value]]
        if isinstance(value, dict):
            return ["d", [[self.pack(key), self.pack(one)] for key, one in value.items()]]
        if kind.__name__ in self.classes:
            return ["r", self.place(value)]
        return ["o", self.name_of(value)]

    def place(self, record: Any) -> int:
        if id(record) not in self.places:
            self.places[id(record)] = len(self.records)
            self.records.append(record)
        return self.places[id(record)]


def _number(value: Any) -> list[str] | None:
    if isinstance(value, int):
        # of any number of digits, in linear time
        return ["i", hex(int(value))]
    if isinstance(value, float):
        return ["f", repr(float(value))]
    if isinstance(value, complex):
        return ["c", repr(complex(value))]
    return None


def packed(
    values: list[Any], classes: Collection[str], name_of: Callable[[Any], Any]
) -> list[Any]:
    """Values as JSON, and last the records that they lead to, each once, however deep and in
    circles.

    Args:
        values: what travels.
        classes: names of the classes whose objects travel by value.
        name_of: the name of any other object; raises where it has none.
    """
    packing = _Packing(classes, name_of)
    told = [packing.pack(one) for one in values]
    fields = []
    # packing a record adds those that it leads to
    for one in packing.records:
        own = [[key, packing.pack(inner)] for key, inner in vars(one).items()]
        fields.append([type(one).__name__, own])
    return [*told, fields]


class _Unpacking:
    def __init__(self, records: list[Any], named: Callable[[tuple[int, int]], Any]) -> None:
        self.records = records
        self.named = named

    def unpack(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        name, inner = value
        if name in _CONTAINERS:
            return _CONTAINERS[name](self.unpack(one) for one in inner)
        return getattr(self, f"of_{name}")(inner)

    def of_o(self, name: list[int]) -> Any:
        return self.named((name[0], name[1]))

    def of_r(self, place: int) -> Any:
        return self.records[place]

    def of_d(self, pairs: list[Any]) -> dict[Any, Any]:
        return {self.unpack(key): self.unpack(one) for key, one in pairs}

    def of_i(self, digits: str) -> int:
        return int(digits, 16)

    def of_f(self, digits: str) -> float:
        return float(digits)

    def of_c(self, digits: str) -> complex:
        return complex(digits)

    def of_b(self, numbers: list[int]) -> bytes:
        return bytes(numbers)


def unpacked(
    told: list[Any],
    named: Callable[[tuple[int, int]], Any],
    blank: Callable[[str], Any],
) -> list[Any]:
    """The values of ``packed``.

    Args:
        told: what it gave.
        named: the object of a name.
        blank: an object of a class by its name, without attributes.
    """
    *values, fields = told
    records = [blank(name) for name, _ in fields]
    unpacking = _Unpacking(records, named)
    for one, (_, inner) in zip(records, fields, strict=True):
        for key, value in inner:
            # no value of the code's stands in a method's place
            if not callable(getattr(type(one), key, None)):
                vars(one)[key] = unpacking.unpack(value)
    return [unpacking.unpack(one) for one in values]
