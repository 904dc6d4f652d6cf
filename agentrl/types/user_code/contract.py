"""Contract: the rules that a plug-in is held to, and those that it broke."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agentrl.errors import ConfigError


class BrokenRuleError(Exception):
    """What was found in place of what a rule asks for."""


class Contract:
    """A plug-in under test.

    Attributes:
        broken: the rules that it broke, each with what was found.
    """

    def __init__(self) -> None:
        self.broken: list[str] = []

    @contextmanager
    def rule(self, name: str) -> Iterator[None]:
        """What raises within breaks the rule."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  (boundary: a plug-in's failure is a broken rule)
            found = str(error) if isinstance(error, BrokenRuleError) else repr(error)
            self.broken.append(f"{name}: {found}")

    def conclude(self, whose: str, contract: str) -> None:
        """Ends the test.

        Args:
            whose: the plug-in, for the error.
            contract: its name, and the page that has it.

        Raises:
            ConfigError: a rule was broken; names all of them.
        """
        if self.broken:
            raise ConfigError(
                f"{whose} breaks {len(self.broken)} rules of the {contract}:\n  "
                + "\n  ".join(self.broken)
            )


def hold(holds: bool, found: str) -> None:
    """Breaks the rule within which it is called, unless something holds.

    Raises:
        BrokenRuleError: it does not.
    """
    if not holds:
        raise BrokenRuleError(found)
