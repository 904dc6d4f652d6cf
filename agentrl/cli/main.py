"""Main: registers the commands, and prints the errors that end them."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from typing import NoReturn

from cyclopts import App, CycloptsError

from agentrl.cli.terminal import drop_output, escape_what_cannot_be_written, say
from agentrl.errors import (
    CHECKPOINT,
    IN_LOG,
    AgentRLError,
    ConfigError,
    RunInterruptedError,
    has_traceback,
)
from agentrl.terminal_log import warnings_on

app = App(
    name="agentrl",
    help="Train language-model agents by reinforcement learning over multi-turn tool use.",
    version=lambda: version("agentrl"),
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
)

_COMMANDS = {
    "train": "Train an agent as a configuration file says.",
    "eval": "Examine a model or a run's policy on held-out tasks, or score such a file again.",
    "rollout": "Collect trajectories of a policy as a data set, without training.",
    "check": "Check a configuration, its data, its tools, its environment and its rewards, without "
    "a model.",
    "try": "Show a tool as the model reads it, and call it as an episode would.",
    "play": "Play an episode yourself, in place of the policy.",
    "init": "Write a first project: a tool, an environment, a reward, a test and a configuration.",
    "ls": "List the trajectories of a run, also while it trains.",
    "query": "Ask a run by SQL, which reads it and nothing else.",
    "tail": "Follow a run: its steps, new trajectories and alerts.",
    "top": "Show what a run does now, and who waits for whom.",
    "diff": "Compare two trajectories turn by turn, and say at which token they part.",
    "show": "Show a run, or one of its trajectories with the origin of every token.",
    "view": "Show runs in the browser, also while they train.",
    "replay": "Play the recorded actions of episodes again, and say what comes out otherwise.",
    "doctor": "Say what this machine offers, sandboxes included.",
    "install": "Build the environment that an engine's servers run in.",
}

_FILES = {
    **dict.fromkeys(("init", "doctor", "install"), "setup_commands"),
    **dict.fromkeys(("ls", "query", "tail", "top", "diff", "show"), "read_commands"),
    "rollout": "train_command",
    "play": "try_command",
}
"""Where a command is that has no file of its own."""

# A command's file is imported when it is called or its help is shown; what it needs is imported
# when it runs.
for _name, _help in _COMMANDS.items():
    _file = _FILES.get(_name, f"{_name}_command")
    app.command(f"agentrl.cli.{_file}:{_name}_command", name=_name, help=_help)

_serve = App(name="serve", help="Serve what agentrl has over HTTP.")
_serve.command(
    "agentrl.cli.serve_command:serve_policy_command",
    name="policy",
    help="Serve a policy to agents that bring their own loop.",
)
_serve.command(
    "agentrl.cli.serve_command:serve_search_command",
    name="search",
    help="Serve a search over documents, in Search-R1's shapes.",
)
app.command(_serve)

_export = App(
    name="export", help="Write what a run holds for those who do not have the run."
)
_export.command(
    "agentrl.cli.view_command:export_html_command",
    name="html",
    help="Write trajectories of a run into one HTML file, which opens without a server.",
)
_export.command(
    "agentrl.cli.view_command:export_model_command",
    name="model",
    help="Write a checkpoint as a model's folder: safetensors, configuration and tokenizer.",
)
app.command(_export)


def run(tokens: Sequence[str]) -> int:
    """Runs one command line.

    Returns:
        The exit code: 0 success, 2 a mistake in the configuration or on the command line, 3 data
        or a user's code that exited, 4 the machine, 5 a reward that `agentrl check` finds wrong,
        130 interrupted by Ctrl-C, 143 by SIGTERM or SIGUSR1, 1 anything else.
    """
    try:
        with warnings_on(lambda text: _tell(f"! {text}")):
            code = app(
                list(tokens),
                exit_on_error=False,
                print_error=False,
                result_action="return_value",
            )
        sys.stdout.flush()
    except CycloptsError as error:
        return _fail(ConfigError(f"{error}; `agentrl --help` lists commands and options"))
    except AgentRLError as error:
        return _fail(error)
    except SystemExit as error:
        # A task that a user's code started beside its own has exited.
        from agentrl.types.user_code.place import described
        from agentrl.types.user_code.wall import EXIT_CODE

        failed = AgentRLError(
            f"your code raised {described(error)}; let it return or raise"
        )
        failed.exit_code = EXIT_CODE
        return _fail(failed)
    except KeyboardInterrupt as error:
        _tell(_interrupted(error))
        return 130
    except BrokenPipeError:
        drop_output()
        return 0
    except Exception as error:
        if not _is_kept(error):
            raise
        return _fail(error)
    return code if isinstance(code, int) else 0


def _fail(error: Exception) -> int:
    """Shows an error: its traceback where no run keeps it, then its sentence, then where a run
    keeps it and how that goes on."""
    if isinstance(error, RunInterruptedError):
        _tell(_interrupted(error))
        return error.exit_code
    from agentrl.config.key_names import with_keys
    from agentrl.types.user_code.place import described

    text = with_keys(str(error)) if isinstance(error, AgentRLError) else described(error)
    if has_traceback(error):
        if _is_kept(error):
            # Ray's own text, or a worker's traceback, may follow the sentence
            text = text.partition("\n")[0]
        else:
            traceback.print_exception(error)
    _tell(f"error: {text}")
    ours = [
        n for n in getattr(error, "__notes__", ()) if n.startswith((IN_LOG, CHECKPOINT))
    ]
    for note in ours:
        say(note, whole=True, file=sys.stderr)
    return error.exit_code if isinstance(error, AgentRLError) else 1


def _is_kept(error: BaseException) -> bool:
    """Whether the log of a run has the error's traceback."""
    return any(note.startswith(IN_LOG) for note in getattr(error, "__notes__", ()))


def _tell(text: str) -> None:
    say(text, file=sys.stderr)


def _interrupted(error: BaseException) -> str:
    """In a word: how the run goes on was said where the run was shown."""
    return str(error).partition(";")[0] or "interrupted"


def main() -> NoReturn:
    """The console script."""
    escape_what_cannot_be_written()
    sys.exit(run(sys.argv[1:]))
