"""Capabilities of SGLang servers: the least version, and since which one each of them works.

What can be asked without harm is asked of the server itself. The rest goes by its version: SGLang
0.5.18 dies of a question for checksums where there is no GPU, and encodes the tokens around images
again.
"""

from __future__ import annotations

import re

from agentrl.errors import MachineError

MIN_VERSION = (0, 5, 18)
DIGESTS_SINCE = (0, 5, 23)
"""``/weights_checker`` may be asked for checksums."""
SPANS_SINCE = (0, 5, 23)
"""An answer says which weights made which of its tokens. Without it an update waits until no
request runs, so that each answer is of one version."""
IMAGES_SINCE = (0, 5, 23)
"""The ids of a request with images are used as they are, but for placeholders."""


def require_version(version: object, server: str) -> tuple[int, ...]:
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
