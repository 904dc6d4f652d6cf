"""Export command: ``agentrl export html``."""

from __future__ import annotations

from pathlib import Path

from agentrl.cli.terminal import counted, reading_stored_files, say
from agentrl.errors import DataError


@reading_stored_files()
def export_html_command(
    run: Path,
    out: Path,
    /,
    *,
    query: str = "",
    limit: int = 200,
    redact: tuple[str, ...] = (),
) -> None:
    """Write trajectories of a run into one HTML file, which opens without a server.

    The file holds the viewer, its token view included, and everything that it shows of them.

    Parameters
    ----------
    run
        The run directory.
    out
        The file, such as failed.html.
    query
        Which trajectories, as in the viewer: status:failed step>=10
    limit
        At most so many, up to 200; the latest steps first.
    redact
        A regular expression of what must not leave: it is taken out of texts, token ids, blobs and
        the configuration. May be given several times.
    """
    from agentrl.viewer.export.html_file import export_html
    from agentrl.viewer.runs.run_folder import RunFolder

    runs = RunFolder(run)
    try:
        if not runs.is_one_run:
            raise DataError(f"'{run}' is a folder of runs; name one of them")
        done = export_html(runs.runs()[0], out, query=query, limit=limit, redact=redact)
    finally:
        runs.close()
    of = f" of {done.found} (--limit, --query)" if done.found > done.trajectories else ""
    say(f"{out}: {counted(done.trajectories, 'trajectory')}{of}, {done.size / 1e6:.1f} MB")
