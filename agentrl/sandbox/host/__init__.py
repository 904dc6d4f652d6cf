"""Sandbox host: a warm interpreter that forks one slot a sandbox and one child a run.

It runs as a process of its own (``python -I -S``), started with an empty environment, and imports
only the standard library, so that the model's code inherits neither secrets nor threads. The
relative imports below let the same files be ``agentrl.sandbox.host`` for the type checker and a
top-level package ``host`` in that process.

    owner process ──control socket──► supervisor (warm, single thread; reaps, sweeps, removes
         folders) │                                │ fork └────────one socket a slot─────► slot (own
         uid, own Landlock domain, drives one run at a time)
                                          │ fork
                                          └─► child (rlimits, Landlock, seccomp; runs the code)

End of file on a socket is the lifeline of the process that listens on it.
"""
