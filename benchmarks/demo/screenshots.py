"""Screenshots: every page of the viewer, light and dark, of a run of ``examples/code``.

Run as ``python -m benchmarks.demo.screenshots RUN``; it replaces the images of ``docs/images``.
``agentrl train examples/code/config.yaml run.dir=runs/code store.detail=full store.states=turn
stages.rl.eval.every=10`` makes such a run. A page that fails, says that something failed, or writes
an error to the console ends the script.
"""

from __future__ import annotations

import argparse
import io
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright
from playwright.sync_api import TimeoutError as Timeout

from agentrl.viewer.launch import Address, serve

OUT = Path(__file__).resolve().parents[2] / "docs" / "images"
THEMES = ("light", "dark")
MAX_BYTES = 3_000_000
"""Of all images together; what was committed once stays in the history."""

SIZE = (1280, 800)
_WAIT_MS = 30_000
_CHROMIUM = "/usr/bin/chromium"
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
_TABS = {
    "chat": ".chat-turn",
    "tokens": ".tok-text span",
    "rendered": ".rendered-turn",
    "retokenise": ".retokenise",
    "judging": ".judging",
    "state": ".state, .missing",
    "timeline": ".timeline",
    "raw": ".raw",
}
PAGES = (
    *(
        "runs",
        "overview",
        "metrics",
        "timeline",
        "trajectories",
        "step",
        "group",
        "task",
        "tasks",
        "behaviour",
        "blame",
    ),
    *(f"trajectory-{tab}" for tab in _TABS),
)
_AWAITED = r"(Loading|Reading|Decoding|Encoding|Comparing|Aligning)[^.]{0,40}…"
_SETTLED = """([selector, awaited]) => {
  const main = document.querySelector("main");
  const texts = (which) => [...main.querySelectorAll(which)].map((one) => one.textContent.trim());
  if (texts("[role=alert]").some(Boolean)) return true;
  const awaits = texts("p, [role=status]").some((text) => new RegExp(awaited).test(text));
  return main.querySelector(selector) && !awaits;
}"""


def main() -> None:
    """Takes them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--pages", nargs="+", choices=PAGES, default=PAGES)
    arguments = parser.parse_args()
    with viewing(arguments.run) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=_FLAGS)
        take(browser, address, arguments.out, arguments.pages)
        browser.close()
    size = sum(path.stat().st_size for path in arguments.out.glob("*.webp"))
    print(f"{arguments.out}: {size:,} bytes")
    if size > MAX_BYTES:
        raise SystemExit(
            f"the images must have at most {MAX_BYTES:,} bytes; lower the quality in _save"
        )


@contextmanager
def viewing(run: Path) -> Iterator[Address]:
    """A viewer of a run, as long as the block lasts."""
    answering = threading.Event()
    ended = threading.Event()
    found: list[Address] = []

    def announce(address: Address) -> None:
        found.append(address)
        answering.set()

    thread = threading.Thread(
        target=serve,
        args=(run,),
        kwargs={
            "host": "127.0.0.1",
            "port": 0,
            "allow_hosts": (),
            "announce": announce,
            "until": ended.wait,
        },
    )
    thread.start()
    try:
        while not answering.wait(0.1):
            if not thread.is_alive():
                raise SystemExit(f"there is no viewer of {run}; its error stands above")
        yield found[0]
    finally:
        ended.set()
        thread.join()


def take(
    browser: Browser,
    address: Address,
    out: Path,
    pages: Sequence[str] = PAGES,
    themes: Sequence[str] = THEMES,
) -> list[Path]:
    """The images of some pages.

    Args:
        browser: Chromium.
        address: of a viewer of one run.
        out: the folder that they go to.
        pages: of ``PAGES``.
        themes: of ``THEMES``.
    """
    out.mkdir(parents=True, exist_ok=True)
    hashes = addresses(address)
    taken = []
    for theme in themes:
        context = browser.new_context(
            viewport={"width": SIZE[0], "height": SIZE[1]},
            color_scheme="dark" if theme == "dark" else "light",
            reduced_motion="reduce",
        )
        context.set_default_timeout(_WAIT_MS)
        page = context.new_page()
        complaints = _complaints(page)
        page.goto(address.link)
        page.wait_for_selector("main")
        for name in pages:
            fragment, selector = hashes[name]
            page.goto(f"http://127.0.0.1:{address.port}/{fragment}")
            try:
                page.wait_for_function(_SETTLED, arg=[selector, _AWAITED])
            except Timeout as error:
                complaints.append(f"{selector} did not come: {error}")
            complaints += filter(None, page.locator("main [role=alert]").all_inner_texts())
            if complaints:
                raise SystemExit(f"{name}, {theme}: " + "; ".join(complaints))
            path = out / f"{name}-{theme}.webp"
            _save(page.screenshot(animations="disabled"), path)
            taken.append(path)
        context.close()
    return taken


def addresses(address: Address) -> dict[str, tuple[str, str]]:
    """By page its fragment, and what stands on it once it is whole."""
    with httpx.Client(
        base_url=f"http://127.0.0.1:{address.port}/api",
        headers={"Authorization": f"Bearer {address.token}"},
        timeout=_WAIT_MS / 1000,
    ) as client:
        [run] = client.get("/runs").raise_for_status().json()["runs"]

        def rows(query: str, sort: str = "-step") -> list[dict[str, Any]]:
            asked = {"query": query, "sort": sort, "limit": "500"}
            answer = client.get(
                f"/runs/{run['key']}/trajectories", params=asked
            ).raise_for_status()
            found: list[dict[str, Any]] = answer.json()["rows"]
            return found

        shown = _most_to_see(rows("purpose:train"))
        task = _played_most(rows("", "task,step") + rows("", "-task,step"))
    place = f"#/run/{quote(run['key'])}"
    group = _query(stage=shown["stage"], label=shown["label"], step=shown["step"])
    one = f"{place}/trajectory/{quote(shown['id'], safe='')}"
    return {
        "runs": ("#/", "table a"),
        "overview": (place, ".charts canvas"),
        "metrics": (f"{place}/metrics", ".charts canvas"),
        "timeline": (f"{place}/timeline", ".time-lane canvas, .empty"),
        "step": (f"{place}/step/{shown['step']}{_query(stage=shown['stage'])}", "#waited"),
        "trajectories": (
            f"{place}/trajectories{_query(query='purpose:train')}",
            "[role=row] a",
        ),
        "group": (f"{place}/group/{shown['group']}{group}", ".group-rows + *"),
        "task": (f"{place}/task/{quote(task, safe='')}", ".task-diff > :nth-child(2)"),
        "tasks": (f"{place}/tasks", ".page > .panel table, .page > .panel p"),
        "behaviour": (f"{place}/behaviour", ".page > .panel table, .page > .panel p"),
        "blame": (f"{place}/blame{_query(level='turn')}", "table.blame td"),
        **{
            f"trajectory-{tab}": (f"{one}{_query(tab=tab, colour='entropy')}", selector)
            for tab, selector in _TABS.items()
        },
    }


def _most_to_see(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Of the latest steps a trajectory with calls whose group learned something."""

    def merit(row: Mapping[str, Any]) -> tuple[bool, bool, int, int]:
        trained = not row["drop"]
        return trained, row["reward"] == 1, min(row["turns"], 3), row["tool_errors"]

    return max(rows, key=merit)


def _played_most(rows: Sequence[Mapping[str, Any]]) -> str:
    """The task that most steps played."""
    steps: dict[str, set[int]] = {}
    for row in rows:
        steps.setdefault(row["task"], set()).add(row["step"])
    return max(steps, key=lambda task: (len(steps[task]), task))


def _query(**params: object) -> str:
    given = {name: value for name, value in params.items() if value not in (None, "")}
    return f"?{urlencode(given)}" if given else ""


def _complaints(page: Page) -> list[str]:
    """What goes wrong in a page from now on."""
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on(
        "console", lambda told: found.append(told.text) if told.type == "error" else None
    )
    return found


def _save(png: bytes, path: Path) -> None:
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").save(path, "WEBP", quality=80, method=6)


if __name__ == "__main__":
    main()
