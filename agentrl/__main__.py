"""``python -m agentrl``: the same as ``agentrl``."""

from __future__ import annotations

from agentrl.cli.main import main

if __name__ == "__main__":
    main()
