"""Stand-ins: what the tests have in the place of the policy's functions, classes and objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .plain_values import Unplain

Name = tuple[int, int]


class Unknown(BaseException):
    """A result that is not there yet."""


class Asker(Protocol):
    """What a text's stand-ins ask."""

    def ask(self, verb: str, target: Any, args: Any = (), keywords: Any = None) -> Any:
        """An operation's result, or ``Pending``."""

    def unknown(self) -> Unknown:
        """To raise where a result must be known."""


_SIDES = [
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
    *("matmul", "and", "or", "xor", "lshift", "rshift"),
]
_REFLECTED = [f"r{one}" for one in _SIDES]
_ORDER = ["lt", "le", "gt", "ge"]
# Python itself reads what these give.
_READ = ["bool", "len", "str", "repr", "hash", "contains", "int", "float", "index"]
_OTHERS = [
    *("call", "next", "getitem", "setitem", "delitem"),
    *("neg", "pos", "abs", "invert", "enter", "exit"),
]
_EVERY = [*_READ, *_OTHERS, *_ORDER, *_SIDES, *_REFLECTED, "eq", "ne"]
# A plain value that is asked one of these is often asked with what is expected of it.
_TELLING = {
    *(f"__{one}__" for one in [*_ORDER, *_SIDES, *_REFLECTED, "contains"]),
    *("count", "find", "index", "rfind", "rindex", "startswith", "endswith"),
    *("difference", "symmetric_difference", "intersection", "union"),
    *("isdisjoint", "issubset", "issuperset", "removeprefix", "removesuffix"),
}


class Pending:
    """A result that is not there yet: each look at it raises ``Unknown``. One of a class, which
    calls may be made of at once, has a name.
    """

    __slots__ = ("_unit_tests_asker", "_unit_tests_name")

    def __init__(self, asker: Asker, name: Name | None) -> None:
        object.__setattr__(self, "_unit_tests_asker", asker)
        object.__setattr__(self, "_unit_tests_name", name)

    def __getattribute__(self, name: str) -> Any:
        raise asker_of(self).unknown()

    def __setattr__(self, name: str, value: Any) -> None:
        raise asker_of(self).unknown()


class Proxy:
    """An object of the code's, which has all other attributes.

    Args:
        asker: of its text.
        name: its own.
        made: it is of the test's making: of a class, and no result of a call.
    """

    __slots__ = ("_unit_tests_asker", "_unit_tests_made", "_unit_tests_name")

    def __init__(self, asker: Asker, name: Name, made: bool) -> None:
        object.__setattr__(self, "_unit_tests_asker", asker)
        object.__setattr__(self, "_unit_tests_name", name)
        object.__setattr__(self, "_unit_tests_made", made)

    def __getattr__(self, name: str) -> Any:
        value = asker_of(self).ask("get", [name_of(self), name])
        if type(value) is Proxy:
            # it may be a method, which is called later
            _keep_to_itself(self, name)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        asker_of(self).ask("set", [name_of(self), name], (value,))

    def __delattr__(self, name: str) -> None:
        asker_of(self).ask("del", [name_of(self), name])

    def __iter__(self) -> Any:
        return iter(known(asker_of(self).ask("iter", [name_of(self), ""])))


class Class:
    """One of the code's; a name with a capital."""

    def __init__(self, asker: Asker, name: str) -> None:
        self._unit_tests_asker = asker
        self.__name__ = name

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return asker_of(self).ask("call", self.__name__, args, keywords)

    def __getattr__(self, name: str) -> Any:
        return asker_of(self).ask("get", [self.__name__, name])

    def __instancecheck__(self, value: Any) -> bool:
        if type(known(value)) is not Proxy:
            return False
        return bool(known(asker_of(self).ask("is_a", [name_of(value), self.__name__])))


def stand_in(asker: Asker, name: str) -> Any:
    """What a name of the code's is to the tests."""
    if is_class(name):
        return Class(asker, name)

    def call(*args: Any, **keywords: Any) -> Any:
        return asker.ask("call", name, args, keywords)

    call.__name__ = name
    return call


def is_class(target: Any) -> bool:
    return isinstance(target, str) and target[:1].isupper()


def method_of(value: Any, name: str) -> Any:
    """What ``value.name(...)`` calls; asks for no attribute that is about to be called."""
    if type(value) is Class:
        target: Any = value.__name__
    elif type(value) in (Proxy, Pending):
        target = name_of(value)
    else:
        return getattr(value, name)

    def method(*args: Any, **keywords: Any) -> Any:
        if type(value) is Proxy:
            _keep_to_itself(value, name)
        return asker_of(value).ask("method", [target, name], args, keywords)

    return method


def same(one: Any, other: Any) -> bool:
    """What ``is`` asks: an object that was made may come back as what a call gave."""
    one, other = known(one), known(other)
    if type(one) is Proxy and type(other) is Proxy:
        return name_of(one) == name_of(other)
    return one is other


def known(value: Any) -> Any:
    """The value.

    Raises:
        Unknown: it is pending.
    """
    if type(value) is Pending:
        raise asker_of(value).unknown()
    return value


def name_of(value: Any) -> list[int]:
    """How the code's side knows an object.

    Raises:
        Unknown: it is not there yet.
        Unplain: it is the test's own.
    """
    if type(value) not in (Proxy, Pending):
        raise Unplain(f"{type(value).__name__} is no plain value")
    name = object.__getattribute__(value, "_unit_tests_name")
    if name is None:
        raise asker_of(value).unknown()
    return list(name)


def asker_of(value: Any) -> Asker:
    asker: Asker = object.__getattribute__(value, "_unit_tests_asker")
    return asker


def _is_made(value: Any) -> bool:
    return bool(object.__getattribute__(value, "_unit_tests_made"))


def _keep_to_itself(value: Any, name: str) -> None:
    # An object in the place of a plain value would be told what is expected of it.
    if name in _TELLING and not _is_made(value):
        raise TypeError(f"an object that a call gave is not asked for its {name}")


def _operation(short: str) -> Callable[..., Any]:
    name = f"__{short}__"

    def method(self: Any, *args: Any, **keywords: Any) -> Any:
        if short == "exit":
            # an exception of the test's stays there
            args = None, None, None
        if short in ("eq", "ne"):
            other = known(args[0])
            if type(other) is not Proxy or not (_is_made(self) or _is_made(other)):
                return same(self, other) == (short == "eq")
        elif short in _ORDER and type(known(args[0])) is not Proxy:
            return NotImplemented
        else:
            _keep_to_itself(self, name)
        value = asker_of(self).ask("method", [name_of(self), name], args, keywords)
        return known(value) if short in _READ else value

    return method


def _unknown(self: Any, *_: Any, **__: Any) -> Any:
    raise asker_of(self).unknown()


for _short in _EVERY:
    setattr(Proxy, f"__{_short}__", _operation(_short))
for _short in [*_EVERY, "iter", "await", "format"]:
    setattr(Pending, f"__{_short}__", _unknown)
