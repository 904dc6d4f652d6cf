"""The processes of a run: role groups, rollout pools and their supervision."""
