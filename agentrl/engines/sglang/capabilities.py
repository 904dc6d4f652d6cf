"""Capabilities of SGLang servers: since which version each of them works.

What can be asked without harm is asked of the server itself. The rest goes by its version: SGLang
0.5.18 dies of a question for checksums where there is no GPU, and encodes the tokens around images
again.
"""

from __future__ import annotations

DIGESTS_SINCE = (0, 5, 23)
"""``/weights_checker`` may be asked for checksums."""
SPANS_SINCE = (0, 5, 23)
"""An answer says which weights made which of its tokens. Without it an update waits until no
request runs, so that each answer is of one version."""
IMAGES_SINCE = (0, 5, 23)
"""The ids of a request with images are used as they are, but for placeholders."""
