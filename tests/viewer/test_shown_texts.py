"""What texts mean: colours of a terminal, code, mathematics; pure functions, run in Node."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.viewer.test_page_modules import STATIC, in_node

PARTS = "trajectory/parts"
MEGABYTE = 1_000_000


def spans(text: str) -> Any:
    body = "return m.ansi(given).map(({ text, look }) => [text, look])"
    return in_node(f"{PARTS}/ansi.js", body, text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("\x1b[41mS\x1b[0mFFF", [["S", "on-red"], ["FFF", ""]]),
        ("\x1b[1;31ma\x1b[22mb\x1b[39;4mc\x1b[md", [
            ["a", "ansi-red ansi-bold"], ["b", "ansi-red"], ["c", "ansi-underline"], ["d", ""]]),
        ("\x1b[94;100ma\x1b[7mb\x1b[27;49mc", [
            ["a", "ansi-blue on-grey"], ["b", "ansi-grey on-blue"], ["c", "ansi-blue"]]),
        ("\x1b[7ma", [["a", "on-grey"]]),  # a ground of its own where none is given
        ("\x1b[38;5;208ma\x1b[48;2;0;0;200mb", [
            ["a", "ansi-yellow"], ["b", "ansi-yellow on-blue"]]),
        ("\x1b[38:2::10:200:10ma\x1b[38:5:244;1mb\x1b[38;5;15;4mc", [
            ["a", "ansi-green"], ["b", "ansi-grey ansi-bold"],
            ["c", "ansi-white ansi-bold ansi-underline"]]),
        ("\x1b[8mhidden", [["hidden", ""]]),  # nothing is concealed
        # what is no colour: it stays and is seen, or asks for none
        ("\x1b[2J\x1b[Ha\x1b]8;;http://x\x1b\\b", [["\x1b[2J\x1b[Ha\x1b]8;;http://x\x1b\\b", ""]]),
        ("a\x1b[3", [["a\x1b[3", ""]]),
        ("\x1b[31", [["\x1b[31", ""]]),
        ("\x1b[38;5;999ma\x1b[48;2;1;xmb", [["a\x1b[48;2;1;xmb", ""]]),
        ("\x1b[38ma\x1b[38;5mb\x1b[38;2;1mc\x1b[999;;m", [["abc", ""]]),
    ],
)  # fmt: skip
def test_a_terminals_colours_become_looks(text: str, wanted: list[list[str]]) -> None:
    assert spans(text) == wanted


def test_a_megabyte_of_escapes_makes_few_spans_and_loses_no_letter() -> None:
    unit = "\x1b[31ma\x1b[32mb"
    found = spans(unit * (MEGABYTE // len(unit)))

    assert len(found) == 501
    # the rest is there with its escapes, which are shown as they are
    assert found[-1] == [unit * (MEGABYTE // len(unit) - 250), ""]
    assert spans("\x1b[1;" * (MEGABYTE // 4)) == [["\x1b[1;" * (MEGABYTE // 4), ""]]
    assert spans("\x1b[" + "1;" * (MEGABYTE // 2) + "mx") == [["x", ""]]


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in parts
    ]
    return sum(
        part * weight for part, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True)
    )


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [":root", '[data-theme="dark"]'])
def test_each_colour_can_be_read_on_each_ground(theme: str) -> None:
    colours: dict[str, str] = {}
    for name in ("app.css", "trajectory/trajectory.css"):
        rule = (STATIC / name).read_text().split(f"{theme} {{", 1)[1].split("}")[0]
        colours |= dict(re.findall(r"--([\w-]+): (#\w{6});", rule))
    texts = [name for name in colours if name.startswith("ansi-")]
    grounds = [name for name in colours if name.startswith("on-") and name != "on-accent"]
    code = ["muted", "good", "warn", "accent"]  # of ::highlight
    pairs = [
        (text, ground) for text in [*texts, "fg"] for ground in [*grounds, "bg", "panel"]
    ]
    pairs += [(text, ground) for text in code for ground in ("bg", "panel")]

    assert (len(texts), len(grounds)) == (9, 9)
    ratios = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in pairs}
    assert {pair: ratio for pair, ratio in ratios.items() if ratio < 4.5} == {}


CODE = {
    "python": (
        'def f(x): # c "q"\n  return """a\n"b""" + \'x\\\'y\' + 0x1F + 1.5e-3\n'
        'if_x = "unended\nNone',
        ["k:def", 'c:# c "q"', "k:return", 's:"""a\n"b"""', "s:'x\\'y'", "n:0x1F", "n:1.5e-3",
         's:"unended', "k:None"],
    ),
    "bash": (
        "echo \"a\nb\" # c\nfoo#bar 'lit' 3; if x",
        ["k:echo", 's:"a\nb"', "c:# c", "s:'lit'", "n:3", "k:if"],
    ),
    "js": ("const a = `x${1}` // c\n/* d", ["k:const", "s:`x${1}`", "c:// c", "c:/* d"]),
    "json": ('{"a": [1, true, null]}', ['s:"a"', "n:1", "k:true", "k:null"]),
    "": ("def f(): pass", []),
    "__proto__": ("def f(): pass", []),
}  # fmt: skip


@pytest.mark.parametrize("language", CODE)
def test_parts_of_code_are_found(language: str) -> None:
    text, wanted = CODE[language]
    body = """const [text, name] = given;
        return m.highlight(text, name).map(([a, b, kind]) => `${kind[0]}:${text.slice(a, b)}`);"""
    assert in_node(f"{PARTS}/highlight.js", body, [text, language]) == wanted


def test_a_language_is_known_by_the_end_of_a_name() -> None:
    names = [
        "Py",
        "src/main.py",
        "run_python",
        "javascript title=x",
        "code",
        "x.tar.gz",
        "",
        None,
    ]
    body = "return given.map(m.languageOf)"
    found = in_node(f"{PARTS}/highlight.js", body, [*names, "constructor", "__proto__"])
    assert found == ["python", "python", "python", "js", *[""] * 6]


@pytest.mark.parametrize("unit", ['"', "'''", "/*", "`", "a1 ", "#"])
def test_five_megabytes_of_code_are_looked_at_up_to_a_bound(unit: str) -> None:
    body = """const text = given.repeat(5_000_000 / given.length);
        return ["python", "js", "bash", "json"].flatMap((name) => m.highlight(text, name))
            .every(([start, end]) => start < end && end <= m.MOST);"""
    assert in_node(f"{PARTS}/highlight.js", body, unit) is True


FLAT = """const flat = ([tag, more, ...inner]) =>
    `${tag}${more.class ? "." + more.class : ""}(${inner
        .map((one) => (typeof one === "string" ? one : flat(one))).join(" ")})`;
    const tree = m.tex(given, true);
    return tree && flat(["math", {}, ...tree.slice(2)]).slice(5, -1);"""


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (r"x_1^{10}", "msubsup(mi(x) mn(1) mn(10))"),
        (r"\frac12", "mfrac(mn(1) mn(2))"),
        (r"\sum_{i=1}^n i", "munderover(mo(∑) mrow(mi(i) mo(=) mn(1)) mi(n)) mi(i)"),
        (r"\sqrt[3]{x}\sqrt2", "mroot(mi(x) mrow(mn(3))) msqrt(mn(2))"),
        (r"\boxed{5{,}050}", "mrow.tex-boxed(mrow(mn(5) mo(,) mn(050)))"),
        (r"\left(a\right.", "mrow(mo(() mi(a) mo())"),
        (r"f'(x)", "msup(mi(f) mrow(mo(′))) mo(() mi(x) mo())"),
        (r"\mathbb{R}\mathcal L\alpha", "mi(ℝ) mi(ℒ) mi(α)"),
        (r"\text{a_b 100\%}", "mtext(a_b 100%)"),
        (
            r"\begin{cases}1&x\\0\end{cases}",
            "mrow(mo({) mtable.tex-cases(mtr(mtd(mrow(mn(1))) mtd(mrow(mi(x)))) "
            "mtr(mtd(mrow(mn(0))))) mo())",
        ),
        ("", ""),
    ],
)
def test_a_formula_becomes_a_tree(source: str, wanted: str) -> None:
    assert in_node(f"{PARTS}/tex.js", FLAT, source) == wanted


@pytest.mark.parametrize(
    "source",
    [
        r"\href{javascript:alert(1)}{x}", r"\color{red}{x}", r"\class{a}{x}", r"\constructor",
        r"\begin{__proto__}\end{__proto__}", r"\begin{cases}x", r"\begin{cases}x\end{matrix}",
        r"\frac{a", r"\left(x", r"\right)", r"\sqrt[3", "x^", "x__1", "a}", "a & b", "\\",
        "{" * 999, "^{" * 999, r"\text{\input{x}}", "x" * 2001,
    ],
)  # fmt: skip
def test_a_formula_that_is_not_understood_is_none(source: str) -> None:
    assert in_node(f"{PARTS}/tex.js", FLAT, source) is None


def tree(source: str) -> Any:
    return in_node(f"{PARTS}/markdown_tree.js", "return m.markdownTree(given)", source)


def test_formulas_stand_in_markdown_and_prices_do_not() -> None:
    (paragraph,) = tree(r"$5 and $10, $x_1 * y$ *b*, \$5, \(z\) `$q$` $\unknown$ $y")
    shown = [(one["type"], one.get("text")) for one in paragraph["children"]]
    assert [text for kind, text in shown if kind == "math"] == ["$x_1 * y$", r"\(z\)"]
    assert ("codespan", "$q$") in shown
    assert "".join(text or "" for kind, text in shown if kind == "text").endswith(
        r" $\unknown$ $y"
    )


def test_a_block_of_mathematics_is_no_list() -> None:
    text = "so\n$$\na\n- b\n$$\n\n\\[ \\color{x} \\]\nafter"
    blocks = tree(text)
    assert [block["type"] for block in blocks] == [
        "paragraph",
        "math",
        "source",
        "paragraph",
    ]
    assert blocks[1]["tree"][1] == {"display": "block"}
    assert blocks[2]["text"] == r"\[ \color{x} \]"


@pytest.mark.parametrize(
    "unit",
    ["$", "$x", "$$", "$$x\n", "\\(", "\\[\n", "\\[\nx\n\n", "\n$$\na\n$$\n", "$$\na\nb\n"],
)
def test_a_text_of_dollars_costs_no_more_than_its_length(unit: str) -> None:
    body = """m.markdownTree("warm $x$");
        const cost = (text) => {
            const started = process.cpuUsage(); // its own time, whatever else runs
            m.markdownTree(text);
            return process.cpuUsage(started).user / 1e6;
        };
        return cost(given.repeat(m.MOST / given.length));"""
    assert in_node(f"{PARTS}/markdown_tree.js", body, unit) < 3
