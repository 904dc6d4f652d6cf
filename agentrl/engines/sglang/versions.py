"""Which SGLang servers are known, and in what their routes differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agentrl.errors import MachineError

__all__ = ["KNOWN", "Dialect", "dialect_of"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """In what one version's interface differs from another's.

    Args:
        version: as ``/server_info`` reports it.
        brackets_updates: tensors are accepted between ``/begin_weight_update`` and ``/end_weight_update`` alone.
        reports_spans: an answer says which weights made which of its tokens. Without it an update waits until no
            request runs, so that each answer is of one version.
        digests: ``/weights_checker`` may be asked for checksums (0.5.18 dies of it where there is no GPU).
        keeps_ids_beside_images: the ids of a request with images are used as they are, but for the placeholders.
    """

    version: str
    brackets_updates: bool
    reports_spans: bool
    digests: bool
    keeps_ids_beside_images: bool


KNOWN: Mapping[str, Dialect] = {
    "0.5.18": Dialect(
        "0.5.18",
        brackets_updates=False,
        reports_spans=False,
        digests=False,
        keeps_ids_beside_images=False,
    ),
    "0.5.23": Dialect(
        "0.5.23",
        brackets_updates=True,
        reports_spans=True,
        digests=True,
        keeps_ids_beside_images=True,
    ),
}


def dialect_of(version: object, server: str) -> Dialect:
    """The dialect of a server's version.

    Raises:
        MachineError: a version that agentrl was never tried with.
    """
    if (found := KNOWN.get(str(version))) is None:
        raise MachineError(
            f"{server} is SGLang {version}; agentrl speaks with {', '.join(KNOWN)}, whose routes it was tried on; "
            "install one of them (`agentrl install sglang`) and name its interpreter in rollout.sglang.python"
        )
    return found
