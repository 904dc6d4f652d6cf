"""Capabilities of an SGLang server: the least version, and what one can do.

What can be asked without harm is asked of the server itself. The rest goes by the version since
which it is known to work: SGLang 0.5.18 dies of a question for checksums where there is no GPU, and
encodes the tokens around images again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentrl.errors import MachineError

Version = tuple[int, ...]

MIN_VERSION = (0, 5, 18)
_NEWER: Version = (0, 5, 23)
"""The version that was tried beside the least one; what each can do is known of these two."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Abilities in which servers differ.

    Args:
        version: as ``/server_info`` reports it.
        brackets_updates: tensors are accepted between ``/begin_weight_update`` and
            ``/end_weight_update`` alone.
    """

    version: Version
    brackets_updates: bool

    @property
    def reports_spans(self) -> bool:
        """Whether an answer says which weights made which of its tokens. Without it an update waits
        until no request runs, so that each answer is of one version."""
        return self.version >= _NEWER

    @property
    def digests(self) -> bool:
        """Whether ``/weights_checker`` may be asked for checksums."""
        return self.version >= _NEWER

    @property
    def keeps_ids_beside_images(self) -> bool:
        """Whether the ids of a request with images are used as they are, but for placeholders."""
        return self.version >= _NEWER


def require_version(version: object, server: str) -> Version:
    """The version as numbers.

    Raises:
        MachineError: it is below ``MIN_VERSION``, or none.
    """
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", str(version))
    numbers = tuple(int(part or 0) for part in found.groups()) if found else ()
    if numbers < MIN_VERSION:
        raise MachineError(
            f"{server} is SGLang {version}; agentrl needs at least "
            f"{'.'.join(map(str, MIN_VERSION))}: install a newer one (`agentrl install sglang`) "
            "and name its interpreter in SGLangEngineSpec.python"
        )
    return numbers
