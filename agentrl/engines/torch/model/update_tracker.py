"""Which of a model's tensors an update has sent."""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.errors import EngineError


class Written:
    """Holds what is sent against what the model has.

    Args:
        shapes: of every tensor that must be sent, by its Hugging Face name.
        model: the kind of model, for messages.
        optional: shapes of those that may be sent too.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        model: str,
        optional: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self._shapes, self._optional, self._model = dict(shapes), dict(optional or {}), model
        self._names: set[str] = set()

    @property
    def touched(self) -> bool:
        """Whether anything was sent since ``begin``."""
        return bool(self._names)

    def begin(self) -> None:
        """Starts an update: nothing counts as sent."""
        self._names.clear()

    def note(self, name: str, shape: tuple[int, ...]) -> None:
        """A tensor is about to be written.

        Raises:
            EngineError: an unknown name, or another shape.
        """
        expected = self._shapes.get(name, self._optional.get(name))
        if expected is None:
            raise EngineError(
                f"weight update: this {self._model} model has no tensor {name!r}; "
                f"its names are like {next(iter(self._shapes))!r}",
                retryable=False,
            )
        if shape != expected:
            raise EngineError(
                f"weight update: {name} must have shape {expected}, got {shape}; "
                "send the whole tensor under its Hugging Face name",
                retryable=False,
            )
        self._names.add(name)

    def require_all(self) -> None:
        """Ends an update.

        Raises:
            EngineError: a tensor was not sent.
        """
        missing = [name for name in self._shapes if name not in self._names]
        if missing:
            raise EngineError(
                f"weight update: {len(missing)} of {len(self._shapes)} tensors were not sent, the "
                f"first is {missing[0]!r}; put every tensor before commit",
                retryable=False,
            )
