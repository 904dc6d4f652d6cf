"""The trajectory page in the browser, over a run that the store wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.kit.marks import wide_but
from tests.viewer.browser.trajectory.conftest import Shown
from tests.viewer.browser.trajectory.sample_run import TWEET

pytestmark = pytest.mark.browser

TABS = (
    "chat", "tokens", "rendered", "retokenise", "judging", "state", "timeline", "raw", "diff",
)  # fmt: skip
AXE = Path(__file__).parents[2] / "vendor" / "axe.js"


def param(page: Page, name: str) -> str | None:
    """A parameter of the page's address."""
    found: str | None = page.evaluate(
        "(name) => new URLSearchParams(location.hash.split('?')[1]).get(name)", name
    )
    return found


def settle(page: Page) -> None:
    """Waits until each pane shows what it loads."""
    waiting = page.locator(".pane").filter(
        has_text=re.compile("(Reading|Decoding|Encoding).*…")
    )
    expect(waiting).to_have_count(0)


def test_the_chat_shows_words_calls_errors_and_agents(shown: Shown) -> None:
    page = shown.open("0-0-0", tab="chat")
    chat = page.get_by_role("group", name="Conversation")

    expect(chat.locator("em")).to_have_text("compute")
    expect(chat.get_by_role("link", name="the formula")).to_have_attribute(
        "rel", re.compile("noref")
    )
    expect(chat.locator(".call-bad")).to_contain_text("exception")
    expect(chat.locator(".call-bad .long").last).to_contain_text("never closed")
    expect(chat.locator(".lane-head")).to_have_text(
        ["sequence 0: main", "sequence 1: critic"]
    )
    expect(chat).to_contain_text("Thank you.")
    expect(page.locator(".traj-facts")).to_contain_text(
        "main 1.5, critic −0.5 (not trained)"
    )
    assert shown.errors == []


def test_the_head_says_what_became_of_an_episode(shown: Shown) -> None:
    for own, name, value in (
        ("0-0-0", "trained in step", "1"),
        ("1-0-0", "dropped", "<script>"),
    ):
        page = shown.open(own, tab="timeline")
        fact = page.locator(".traj-facts div", has=page.get_by_text(name, exact=True))
        expect(fact.locator("dd")).to_contain_text(value)
    page = shown.open("3-0-0", tab="timeline")
    expect(page.locator(".traj-facts dt", has_text="dropped")).to_have_count(0)
    assert shown.errors == []


def test_a_large_integer_is_shown_and_copied_as_it_is_stored(shown: Shown) -> None:
    for tab, pane in (("chat", ".chat"), ("judging", ".judging"), ("state", ".state-view")):
        page = shown.open("0-0-0", pane, tab=tab, turn="1")
        expect(page.locator(pane)).to_contain_text(str(TWEET))
    page = shown.open("0-0-0", ".raw", tab="raw")
    page.evaluate(
        "navigator.clipboard.writeText = async (text) => { window.copied = text; }"
    )
    page.get_by_role("button", name="copy JSON").click()
    page.wait_for_function("window.copied")
    copied = json.loads(page.evaluate("window.copied"))
    assert copied["turns"][1]["calls"][0]["call"]["arguments"]["options"]["tweet"] == TWEET
    assert shown.errors == []


def test_agents_and_branches_lie_side_by_side(shown: Shown) -> None:
    page = shown.open("3-0-0", tab="chat")
    titles = [
        "sequence 0: main",
        "sequence 1: main, branches after turn 0",
        "sequence 2: critic",
    ]
    expect(page.locator(".lane-head")).to_have_text(titles)
    places = [page.locator(f"[data-turn='{turn}']").bounding_box() for turn in range(4)]
    left = [place["x"] for place in places if place]
    # turns 0 and 1 in the first lane, the branch and the critic to the right of it
    assert left[0] == left[1] < left[2] < left[3]
    top = [place["y"] for place in places if place]
    # the two ways on from turn 0 lie side by side
    assert top[0] < top[1] == top[2] < top[3]
    expect(page.get_by_text("Try another way.")).to_be_visible()
    expect(page.locator(".outline")).to_contain_text("after 0")

    shown.open("3-0-0", ".tok-text", tab="tokens", sequence="each")
    panes = page.locator(".tok-pane")
    expect(panes).to_have_count(3)
    expect(panes.nth(1)).to_contain_text("turn 2 · main · branches after turn 0")
    shown.open("3-0-0", ".rendered-text", tab="rendered")
    expect(page.locator(".rendered section")).to_have_count(3)
    assert shown.errors == []


def test_a_link_to_tokens_selects_them(shown: Shown) -> None:
    page = shown.open("2-0-0", ".tok-text .sel", tab="tokens", tokens="20000-20003")

    assert page.locator(".tok-text .sel").count() == 3
    expect(page.locator(".tok-detail dd").first).to_have_text("20000")
    expect(page.locator(".tok-text .sel").first).to_be_in_viewport()


def test_the_worst_token_is_the_planted_one(shown: Shown) -> None:
    page = shown.open("2-0-0", ".tok-text", tab="tokens", colour="difference")
    page.keyboard.press("w")
    selected = page.locator(".tok-text .sel")
    expect(selected).to_have_count(1)

    expect(selected).to_be_in_viewport()
    expect(selected).to_have_class(re.compile(r"\bn11\b"))
    value = page.locator(".tok-detail dl div", has_text="difference").locator("dd")
    expect(value).to_have_text("-4 nats")
    assert page.evaluate("document.querySelectorAll('*').length") <= 2000


def test_keys_colour_by_the_next_signal(shown: Shown) -> None:
    page = shown.open("0-0-0", ".tok-text", tab="tokens")
    kinds = page.locator(".tok-text .c1").count()
    page.keyboard.press("m")

    expect(page.locator(".signals .active")).to_contain_text("logprobs")
    expect(page.locator(".tok-text .c1")).to_have_count(0)
    assert kinds > 0
    assert param(page, "colour") == "logprobs"


def test_a_threshold_counts_and_frames_the_tokens_beyond_it(shown: Shown) -> None:
    page = shown.open("0-0-0", ".signals input", tab="tokens", colour="difference")
    slider = page.get_by_label("Threshold of difference")
    expect(page.locator(".tok-text .over")).to_have_count(0)
    # |value| >= 4 * (199 / 200)^2: the planted token alone
    slider.fill("199")

    row = page.locator(".signals .active")
    expect(row).to_contain_text("1 of")
    expect(page.locator(".tok-text .over")).to_have_count(1)
    slider.fill("0")
    sampled = (
        page.locator(".traj-facts div", has_text="sampled tokens")
        .locator("dd")
        .inner_text()
    )
    expect(row).to_contain_text(f"{sampled} of {sampled} (100%)")


def test_what_is_missing_says_why_and_names_the_setting(shown: Shown) -> None:
    page = shown.open("1-0-0", ".tok-side .missing", tab="tokens")
    missing = page.locator(".tok-side .missing")

    expect(missing).to_contain_text("old_logprobs")
    expect(missing).to_contain_text("store.detail")
    shown.open("2-0-0", tab="state")
    for text in ("Env.snapshot()", "store.states: turn or end"):
        expect(page.locator(".missing li", has_text=text).first).to_be_in_viewport()


def test_keys_lead_through_turns_and_trajectories(shown: Shown) -> None:
    page = shown.open("0-0-0", tab="chat")
    keys = page.keyboard
    walk = [
        ("j", "0"),
        ("j", "1"),
        ("k", "0"),
        ("t", "1"),
        ("e", "0"),
        ("t", "1"),
        ("t", "0"),
    ]
    for key, turn in walk:
        keys.press(key)
        assert param(page, "turn") == turn, key
    keys.press("]")
    page.wait_for_selector("h1:text-is('0-1-0')")
    keys.press("[")
    page.wait_for_selector("h1:text-is('0-0-0')")
    keys.press("J")
    page.wait_for_selector("h1:not(:text-is('0-0-0'))")
    keys.press("K")
    page.wait_for_selector("h1:text-is('0-0-0')")
    keys.press("}")
    page.wait_for_selector("h1:text-is('0-1-0')")
    keys.press("{")
    page.wait_for_selector("h1:text-is('0-0-0')")
    keys.press("2")
    expect(page.locator(".tabs [aria-current]")).to_have_text("Tokens")


def test_two_trajectories_lie_side_by_side_and_differ(shown: Shown) -> None:
    page = shown.open("0-0-0", tab="chat")
    page.keyboard.press("p")
    assert param(page, "pin") == "0-0-0"
    page.keyboard.press("]")
    page.wait_for_selector("h1:text-is('0-1-0')")

    expect(page.locator(".panes.two > .pane")).to_have_count(2)
    page.keyboard.press("d")
    expect(page.get_by_text("They first differ in turn 0.")).to_be_visible()
    expect(page.locator(".diff-new").first).to_contain_text("Other words.")
    expect(
        page.get_by_text(re.compile("Their tokens first differ at token [0-9]+"))
    ).to_be_visible()
    page.keyboard.press("p")
    expect(page.get_by_text("Nothing to compare with")).to_be_visible()


def test_states_and_files_are_stepped_through(shown: Shown) -> None:
    page = shown.open("0-0-0", ".state-view", tab="state", turn=0)
    expect(page.locator("table.grid td").first).to_have_text("#")
    page.keyboard.press("j")
    expect(page.locator(".state-view table:not(.grid) th")).to_have_text(["n", "sum"])
    expect(page.locator(".state-view .diff-gone").first).to_be_visible()
    page.get_by_role("button", name="work/main.py changed").click()
    expect(page.locator(".diff-new")).to_have_text(re.compile(r"print\(solve\(100\)\)"))
    expect(page.locator(".file-deleted")).to_contain_text("notes.txt")
    page.get_by_label("Step").fill("0")  # what reset left, before any turn
    expect(page.locator(".state-view")).to_contain_text("nothing yet")
    page.get_by_label("Step").fill("2")
    expect(page.locator(".file-deleted")).to_contain_text("notes.txt")


def test_images_of_the_run_are_shown_by_their_hash(shown: Shown) -> None:
    page = shown.open("0-0-0", ".chat img", tab="chat")
    image = page.locator(".chat img").first
    expect(image).to_have_attribute("src", re.compile("/blob/[0-9a-f]{64}$"))
    page.wait_for_selector("figcaption:has-text('3 × 2')")
    assert image.evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 3

    shown.open("0-0-0", ".state canvas", tab="state", turn=3)
    expect(page.locator("figcaption")).to_have_text("3 × 2")
    page.get_by_role("button", name="plot.png new").click()
    expect(page.locator(".state img")).to_be_visible()


def test_a_token_under_the_pointer_shows_all_of_it(shown: Shown) -> None:
    page = shown.open("0-0-0", ".tok-text span", tab="tokens", colour="logprobs")
    token = page.locator(".tok-text span[class^=s]").first
    token.hover()

    facts = page.locator(".tok-detail")
    expect(facts).to_contain_text("policy")
    expect(facts.locator("div", has_text="logprobs").first).to_contain_text("nats")
    likely = page.locator(".tok-detail .alternatives tbody tr")
    expect(likely).to_have_count(3)
    expect(likely.first).to_contain_text("sampled")
    expect(likely.first).to_contain_text(facts.locator("dd").nth(1).inner_text())
    expect(likely.nth(1)).to_contain_text("13.5%")
    page.locator(".tok-text span:not([class^=s])").first.hover()
    expect(likely).to_have_count(0)
    token.hover()
    place = facts.locator("dd").first.inner_text()
    token.click()
    assert param(page, "tokens") == f"{place}-{int(place) + 1}"
    page.keyboard.press("Shift+ArrowRight")
    expect(page.locator(".tok-text .sel")).to_have_count(2)


def test_words_from_right_to_left_keep_their_order_to_themselves(shown: Shown) -> None:
    page = shown.open("0-0-0", ".tok-text span", tab="tokens")

    assert page.locator(".tok-text span[dir]").count() == 0
    isolated = page.evaluate("""async () => {
        const { TokenBlocks } = await import("/trajectory/tokens/blocks.js");
        const pane = document.querySelector(".tok-pane");
        const blocks = new TokenBlocks(pane, { hover() {}, pick() {}, head: () => "" });
        const model = { count: 2, turn: [0, 0], sequence: [0, 0], pieces: ["\u05d0", "a"],
                        bytes: new Map() };
        blocks.show(model, null, new Uint8Array(2));
        const spans = [...pane.querySelectorAll(".tok-text span")];
        return spans.map((span) => getComputedStyle(span).unicodeBidi);
    }""")
    assert isolated == ["isolate", "normal"]


def test_a_link_to_a_turn_leads_there(shown: Shown) -> None:
    page = shown.open("2-0-0", ".chat-turn.current", tab="chat", turn=14)
    expect(page.locator("[data-turn='14'] h2")).to_be_in_viewport()
    page.keyboard.press("2")
    expect(page.locator(".tok-head", has_text="turn 14")).to_be_in_viewport()


def test_judging_shows_why(shown: Shown) -> None:
    page = shown.open("0-0-0", ".judging", tab="judging")

    expect(page.locator(".reward-part").first).to_contain_text("1 passed")
    expect(page.locator(".reward-part").last.locator("strong")).to_have_text("5050")


def test_the_timeline_adds_up(shown: Shown) -> None:
    page = shown.open("0-0-0", ".timeline table", tab="timeline")
    rows = page.locator(".timeline tbody tr")

    # generation: 1.45 + 0.9 + 0.5 + 0.4 s; tools: 0.31 + 0.2 + 0.5 s
    expect(rows.filter(has_text="generation")).to_contain_text("3.25 s")
    expect(rows.filter(has_text="tool").last).to_contain_text("1.01 s")


def test_ids_that_encoding_would_not_give_are_named_and_shown(shown: Shown) -> None:
    page = shown.open("0-1-0", ".difference", tab="retokenise")
    first = page.locator(".difference").first
    expect(first).to_contain_text("other split")
    expect(page.get_by_text("Not compared: the run has no chat template")).to_be_visible()

    first.get_by_role("link").click()
    page.wait_for_selector(".tok-text .sel")
    expect(page.locator(".tok-text .sel").first).to_be_in_viewport()

    shown.open("0-0-0", ".retokenise .good", tab="retokenise")
    expect(page.locator(".retokenise .good")).to_have_count(2)


def test_a_note_on_tokens_is_kept_and_leads_back(shown: Shown) -> None:
    page = shown.open("0-0-0", ".tok-text .sel", tab="tokens", tokens="30-33")
    page.get_by_role("button", name="note on 3 tokens").click()
    page.get_by_label("labels").fill("good tool-use")
    page.get_by_label("text").fill("<b>look</b>")
    page.get_by_role("button", name="save").click()
    note = page.locator(".note", has_text="tokens 30 to 32")
    expect(note).to_contain_text("<b>look</b>")
    expect(note.locator(".label")).to_have_text(["good", "tool-use"])

    shown.open("0-0-0", ".note", tab="chat")
    page.locator(".note a", has_text="tokens 30 to 32").click()
    expect(page.locator(".tok-text .sel")).to_have_count(3)
    page.get_by_role("button", name=re.compile("Delete the note")).click()
    expect(page.locator(".note")).to_have_count(0)


@pytest.mark.parametrize("tab", TABS)
def test_hostile_words_do_nothing(shown: Shown, tab: str) -> None:
    page = shown.open("1-0-0", ".pane", tab=tab)
    settle(page)
    closed = page.locator(".json-toggle[aria-expanded=false]")
    for _ in range(min(20, closed.count())):
        closed.first.click()

    assert page.evaluate("[window.pwned, ({}).polluted]") == [None, None]
    assert page.locator("#app script").count() == 0
    assert page.evaluate(
        "Array.from(document.querySelectorAll('a[href]'), (a) => a.protocol)"
    ) == (["http:"] * page.locator("a[href]").count())
    assert page.locator(".traj img").count() == 0
    assert page.evaluate("document.body.innerText.length") < 200_000
    assert shown.foreign == []
    assert [error for error in shown.errors if "404" not in error] == []


def test_hostile_words_of_a_note_do_nothing(shown: Shown) -> None:
    page = shown.open("1-0-0", tab="chat")
    page.get_by_role("button", name="add a note").click()
    page.get_by_label("text").fill(
        "<img src=x onerror=window.pwned=1> \u202e [x](javascript:1)"
    )
    page.get_by_role("button", name="save").click()
    expect(page.locator(".note")).to_contain_text("<img src=x")

    assert page.evaluate("window.pwned") is None
    expect(page.locator(".note")).to_contain_text("⟨U+202E⟩")
    page.get_by_role("button", name=re.compile("Delete the note")).click()
    expect(page.locator(".note")).to_have_count(0)


HIGHLIGHTED = """() => Object.fromEntries([...CSS.highlights].map(([name, ranges]) => [
    name, [...ranges].map((r) => r.startContainer.data.slice(r.startOffset, r.endOffset))]))"""


def test_texts_are_shown_as_what_they_mean_and_as_they_are(shown: Shown) -> None:
    page = shown.open("5-0-0", ".chat-turn math", tab="chat")
    first = page.locator("[data-turn='0']")
    board = first.locator(".role-user .long.mono")
    expect(board.locator(".on-red")).to_have_text("S")
    expect(board).to_contain_text("SFFF\nFHFH")
    assert first.locator("math").count() == 4
    namespaces = "all => all.every((one) => one.namespaceURI.endsWith('MathML'))"
    assert first.locator("math, math *").evaluate_all(namespaces)
    expect(first.locator("math[display=block]").first).to_have_attribute(
        "title", re.compile("aligned")
    )
    expect(first.locator(".md")).to_contain_text(r"$\color{red}{x}$")
    expect(first.locator(".call .ansi-red.ansi-bold")).to_have_text("1 failed")
    expect(first.locator(".call").first).to_contain_text("⟨U+001B⟩[2J")
    expect(first).to_contain_text("\N{MAN}\u200d\N{WOMAN}\u200d\N{GIRL}, ")
    expect(first).to_contain_text("\u06cc\u200c\u062e")
    expect(first).to_contain_text("hidden⟨U+200D⟩joiner")
    code = page.evaluate(HIGHLIGHTED)
    assert code["code-comment"] == ["# of all", "# the sum", "# each"]
    assert code["code-string"] == ['"no\'ne"', '"$f"']
    assert {"def", "return", "for", "done"} <= {*code["code-keyword"]}

    page.evaluate(
        "navigator.clipboard.writeText = async (text) => { window.copied = text; }"
    )
    board.locator("xpath=..").get_by_role("button", name="copy").click()
    expect(page.get_by_role("button", name="copied")).to_be_visible()
    assert page.evaluate("window.copied").startswith("\x1b[41mS\x1b[0mFFF")

    page.keyboard.press("r")
    expect(first.locator("math, .on-red")).to_have_count(0)
    expect(first).to_contain_text("⟨U+001B⟩[41mS")
    expect(first).to_contain_text("$$\n\\begin{aligned}")
    expect(page.get_by_role("button", name="raw text")).to_have_attribute(
        "aria-pressed", "true"
    )
    assert param(page, "raw") == "1"
    assert not any(page.evaluate(HIGHLIGHTED).values())

    shown.open("5-0-0", ".state-view .on-red", tab="state", turn=0)
    page.get_by_role("button", name="work/main.py new").click()
    expect(page.locator(".state-view .long")).to_contain_text("import os")
    assert page.evaluate(HIGHLIGHTED)["code-keyword"] == ["import"]
    shown.open("5-0-0", ".state-view", tab="state", turn=1)
    page.get_by_role("button", name="environment's state").click()
    expect(page.locator(".state-view table.grid .on-blue")).to_have_text("A")
    assert shown.errors == []


def test_the_outline_is_a_drawer_where_there_is_no_room(shown: Shown) -> None:
    page = shown.page
    page.set_viewport_size({"width": 420, "height": 800})
    shown.open("2-0-0", ".chat-turn", tab="chat")
    expect(page.locator(".outline")).to_have_count(0)
    button = page.get_by_role("button", name="Turns")
    expect(button).to_have_attribute("aria-expanded", "false")
    button.focus()
    page.keyboard.press("o")

    drawer = page.get_by_role("dialog", name="Turns and notes")
    expect(drawer.get_by_role("button", name="Close")).to_be_focused()
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    assert found["violations"] == []
    page.keyboard.press("Escape")
    expect(drawer).to_have_count(0)
    expect(button).to_be_focused()

    button.click()
    drawer.get_by_role("button", name=re.compile("^11 ")).click()
    expect(drawer).to_have_count(0)
    expect(page.locator("[data-turn='11'] h2")).to_be_in_viewport()
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 420
    button.click()
    page.mouse.click(410, 400)  # beside it
    expect(drawer).to_have_count(0)
    page.set_viewport_size({"width": 1280, "height": 800})
    expect(page.locator(".traj-side .outline")).to_be_visible()
    assert shown.errors == []


def test_facets_are_a_drawer_where_there_is_no_room(shown: Shown) -> None:
    page = shown.page
    page.set_viewport_size({"width": 420, "height": 800})
    page.goto(f"{shown.root}/#/run/{shown.key}/trajectories")
    page.wait_for_selector(".grid-body [role=row] a")
    expect(page.get_by_role("region", name="Narrow the list")).to_have_count(0)

    page.keyboard.press("f")
    drawer = page.get_by_role("dialog", name="Facets")
    drawer.get_by_role("button", name=re.compile("^search")).click()
    expect(page.get_by_text("2 found", exact=True)).to_be_visible()
    page.keyboard.press("Escape")
    expect(drawer).to_have_count(0)
    page.set_viewport_size({"width": 1280, "height": 800})
    expect(page.get_by_role("region", name="Narrow the list")).to_be_visible()
    assert shown.errors == []


def test_a_long_text_is_cut_until_asked_for(shown: Shown) -> None:
    page = shown.open("1-0-0", tab="chat", turn=1)
    more = page.get_by_role("button", name=re.compile("show more: 9,994,019 of 10,000,019"))
    more.click()

    expect(
        page.get_by_role("button", name=re.compile("show more: 9,894,019"))
    ).to_be_visible()


LONG = {
    "chat": {"m": 10_000_000, "t": 10_000_000},
    "judging": {"j": 10_000_000},
    "state": {"s": 1_000_000},  # the most that is kept of one
    "raw": {},
    "diff": {},
}
"""By tab the letters that texts of 4-0-0 repeat, and how often."""


def test_ten_megabytes_are_cut_and_can_be_had_whole(shown: Shown) -> None:
    for tab, letters in LONG.items():
        page = shown.open("4-0-0", tab=tab, turn=0, pin="3-0-0")
        page.wait_for_selector(f".tabs [aria-current] >> text={tab.capitalize()[:4]}")
        settle(page)
        for letter, size in letters.items():
            text = page.locator(".long", has_text=re.compile(f"{letter}{{100}}")).first
            with page.expect_download() as saved:
                text.get_by_role("button", name="download the whole text").click()
            assert saved.value.path().stat().st_size == size
            text.get_by_role("button", name=re.compile("show more")).click()
            more = text.locator(".long-text").evaluate("one => one.textContent.length")
            assert 100_000 < more < 130_000

        assert page.evaluate("document.querySelectorAll('*').length") <= 2000, tab
        assert page.evaluate("document.body.innerText.length") < 400_000, tab
    page.keyboard.press("2")  # it still answers to its keys
    expect(page.locator(".tabs [aria-current]")).to_have_text("Tokens")
    assert shown.errors == []


def test_the_list_and_the_group_of_ten_megabytes_stay_small(shown: Shown) -> None:
    page = shown.page
    for path, waited in (
        ("trajectories", ".grid-body [role=row] a"),
        ("group/4", ".group-rows td"),
        ("task/task-4", ".episodes td"),
    ):
        page.goto(f"{shown.root}/#/run/{shown.key}/{path}")
        page.wait_for_selector(waited)
        assert page.evaluate("document.querySelectorAll('*').length") <= 2000
        assert page.evaluate("document.body.innerText.length") < 100_000
    assert shown.errors == []


def test_what_is_learned_or_noted_later_moves_no_reader(shown: Shown) -> None:
    page = shown.open("2-0-0", ".chat-turn.current", tab="chat", turn=14)
    chat = page.locator(".chat")
    expect(page.locator("[data-turn='14'] h2")).to_be_in_viewport()
    chat.evaluate("box => box.scrollTo(0, 0)")

    page.get_by_role("button", name="add a note").click()
    page.get_by_label("text").fill("here")
    page.get_by_role("button", name="save").click()
    expect(page.locator(".note")).to_contain_text("here")  # the trajectory was loaded anew
    assert chat.evaluate("box => box.scrollTop") == 0
    page.get_by_role("button", name=re.compile("Delete the note")).click()
    expect(page.locator(".note")).to_have_count(0)

    shown.open("2-0-0", ".tok-text", tab="tokens")
    kept = page.evaluate("""async () => {
        const { TokenBlocks } = await import("/trajectory/tokens/blocks.js");
        const pane = document.querySelector(".tok-pane");
        const blocks = new TokenBlocks(pane, { hover() {}, pick() {}, head: () => "" });
        const made = (ids) => ({
            count: 50000, ids, turn: new Int32Array(50000), sequence: new Int32Array(50000),
            pieces: Array.from(ids, (id) => `token ${id}\n`), bytes: new Map(),
        });
        const show = (ids) => blocks.show(made(ids), null, new Uint8Array(50000));
        show(new Int32Array(50000));
        pane.scrollTop = 5000;
        show(new Int32Array(50000)); // the same tokens, of which more is known
        const same = pane.scrollTop;
        show(new Int32Array(50000).fill(1));
        return [same, pane.scrollTop];
    }""")
    assert kept == [5000, 0]


@pytest.mark.parametrize("theme", wide_but({"light"}, ["light", "dark"]))
def test_axe_finds_nothing(shown: Shown, theme: str) -> None:
    page = shown.page
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    found = []
    for tab in TABS:
        shown.open("0-0-0", ".pane", tab=tab, colour="difference", pin="0-1-0", turn=0)
        settle(page)
        page.evaluate(AXE.read_text())
        result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        found += [
            f"{tab}: {fault['id']}: {node['html'][:200]}"
            for fault in result["violations"]
            for node in fault["nodes"][:3]
        ]
    assert not found, "\n".join(found)
