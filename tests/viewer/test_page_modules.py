"""The pages' pure functions: routes, formats, queries, arrays, alignment, columns; run in Node."""

from __future__ import annotations

import base64
import json
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.waiting import DEADLINE_S

STATIC = Path(__file__).parents[2] / "agentrl" / "viewer" / "static"
PROGRAM = """
globalThis.document = {{ documentElement: {{ dataset: {{}} }} }};
const m = await import({module});
let text = "";
for await (const part of process.stdin) text += part;
const given = JSON.parse(text);
const answer = (() => {{ {body} }})();
process.stdout.write(JSON.stringify(answer ?? null));
"""


def in_node(module: str, body: str, value: object = None) -> Any:
    """What ``body`` returns, a function's body that sees the module as ``m`` and ``given``."""
    program = PROGRAM.format(module=json.dumps(f"file://{STATIC / module}"), body=body)
    done = subprocess.run(
        ["node", "--input-type=module", "-e", program],
        input=json.dumps(value),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_link_leads_back_to_what_it_was_made_of() -> None:
    # an id of an evaluation holds slashes, a label may hold anything
    cases = [
        ["runs", {}],
        ["compare", {"runs": "a,b"}],
        ["overview", {"run": "k"}],
        [
            "trajectory",
            {"run": "k", "id": "rl/after 50%/3-1-0", "tab": "tokens", "tokens": "1-9"},
        ],
        ["trajectories", {"run": "k", "query": 'text:"a&b=c#?" -env:x'}],
        ["group", {"run": "k", "id": "12", "stage": "__proto__"}],
        ["step", {"run": "k", "id": "0", "stage": "rl"}],
        ["task", {"run": "k", "id": '"><script>'}],
    ]
    body = """return given.map(([page, params]) => {
        const { page: found, run, id, params: rest } = m.parse(m.link(page, params));
        return [found, { ...rest, ...(run && { run }), ...(id && { id }) }];
    });"""

    assert in_node("lib/router.js", body, cases) == cases


def test_a_group_is_named_by_number_stage_and_label_and_never_by_a_step() -> None:
    row = {"group": 3, "stage": "rl", "label": "code/step=000001/greedy", "step": 4}

    assert in_node("lib/router.js", "return m.groupLink('k', given)", row) == (
        "#/run/k/group/3?stage=rl&label=code%2Fstep%3D000001%2Fgreedy"
    )


@pytest.mark.parametrize(
    "hash_", ["#/nowhere", "#/run/k/nowhere", "#/run/k/task", "#/run/k/blame/x"]
)
def test_an_address_of_no_page_is_unknown(hash_: str) -> None:
    assert in_node("lib/router.js", "return m.parse(given).page", hash_) == "unknown"


def test_a_query_named_after_a_prototype_pollutes_nothing() -> None:
    left = "[({}).x ?? null, typeof ({}).constructor]"
    body = f"m.parse('#/?__proto__=x&constructor=y'); return {left}"

    assert in_node("lib/router.js", body) == [None, "function"]


def test_a_replaced_address_never_undoes_one_that_the_browser_was_just_sent_to() -> None:
    body = """
        globalThis.location = { hash: "" };
        globalThis.history = { replaceState: (state, title, href) => { location.hash = href; } };
        let follow;
        globalThis.addEventListener = (name, listener) => { follow = listener; };
        m.listen();
        const seen = [];
        const note = () => seen.push([location.hash, m.route.peek().page]);
        location.hash = "#/run/k/trajectory/t"; // sent there; the browser tells the page later
        m.go("#/run/k", { replace: true }); // the page that is left goes to another
        note();
        follow();
        note();
        m.go("#/run/k", { replace: true });
        note();
        return seen;
    """

    assert in_node("lib/router.js", body) == [
        ["#/run/k/trajectory/t", "runs"],
        ["#/run/k/trajectory/t", "trajectory"],
        ["#/run/k", "overview"],
    ]


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        ("number(0.123456)", "0.123"),
        ("number(12345.6)", "12,346"),
        ("number(-0.00001234)", "−1.23e−5"),
        ("number(null)", "–"),
        ("number(NaN)", "–"),
        ("number(1 / 0)", "∞"),
        ("count(15360)", "15.4k"),
        ("percent(0.0666667)", "6.67%"),
        ("duration(0.085)", "85 ms"),
        ("duration(3750)", "1 h 2 min"),
        ("ago(100, 90)", "just now"),  # a clock that went back
        ("ago(100, 280)", "3 min ago"),
        ("bytes(4100000)", "4.1 MB"),
        ("clip('x'.repeat(10000000), 3)", "xxx … 9,999,997 more characters"),
        ("clip('a😀', 2)", "a … 2 more characters"),
        ("line('a\\n  b', 9)", "a b"),
        ("line('x'.repeat(1e7), 3)", "xxx…"),
    ],
)
def test_a_value_is_shown_as_people_read_it(call: str, shown: str) -> None:
    assert in_node("lib/format.js", f"return m.{call}") == shown


JOINED = {
    "a family": "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "two hands": "\U0001f9d1\U0001f3fd\u200d\U0001f4bb",
    "a heart on fire": "\u2764\ufe0f\u200d\U0001f525",
    "a key": "1\ufe0f\u20e3",
    "Persian": "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
    "Devanagari": "\u0915\u094d\u200d\u0937",
    "Sinhala": "\u0dc1\u0dca\u200d\u0dbb\u0dd3",
}
HIDDEN = {
    "a\u200db": "a⟨U+200D⟩b",
    "a\u200c\u0645": "a⟨U+200C⟩\u0645",
    "\u0645\u200c\u200c\u0645": "\u0645⟨U+200C⟩⟨U+200C⟩\u0645",
    "\u0645\u200d": "\u0645⟨U+200D⟩",
    "\U0001f468\u200d": "\U0001f468⟨U+200D⟩",
    "a\ufe0f": "a⟨U+FE0F⟩",
    "1\ufe0f": "1⟨U+FE0F⟩",
    "\u202a\u202b\u202c\u202d\u202e": "⟨U+202A⟩⟨U+202B⟩⟨U+202C⟩⟨U+202D⟩⟨U+202E⟩",
    "\u2066\u2067\u2068\u2069": "⟨U+2066⟩⟨U+2067⟩⟨U+2068⟩⟨U+2069⟩",
    "\u0645\u200e\u0645\u200f\u061c": "\u0645⟨U+200E⟩\u0645⟨U+200F⟩⟨U+061C⟩",
    "\x1b[31m\x00\x9b": "⟨U+001B⟩[31m⟨U+0000⟩⟨U+009B⟩",
    "a\r\nb\rc\td": "a\r\nb⟨U+000D⟩c\td",
    "x\U000e0041\U000e0100": "x⟨U+E0041⟩⟨U+E0100⟩",
    "\ud800x": "⟨U+D800⟩x",
}


def test_a_joiner_stays_between_what_joins_and_all_else_unseen_is_shown() -> None:
    given = [*JOINED.values(), *HIDDEN]
    wanted = [*JOINED.values(), *HIDDEN.values()]
    assert in_node("lib/unseen.js", "return given.map(m.showUnseen)", given) == wanted
    # of a token it is not known what it joins
    every = in_node("lib/unseen.js", "return given.map(m.showEvery)", [*JOINED.values()])
    assert not any(sign in text for text in every for sign in "\u200c\u200d\ufe0f")


def test_a_click_puts_a_term_into_a_query_and_takes_it_out() -> None:
    body = """
        const one = m.term("tool", 'say "x\\\\y"');
        const put = m.toggled('env:code text:"a b"', one);
        return [one, put, m.has(put, one), m.toggled(put, one)];"""

    assert in_node("lib/query.js", body) == [
        r'tool:"say \"x\\y\""',
        r'env:code text:"a b" tool:"say \"x\\y\""',
        True,
        'env:code text:"a b"',
    ]


def made_json(rng: random.Random, depth: int = 3) -> Any:
    """A value with integers around and far beyond 2^53, and with texts that look like such JSON."""
    many = range(rng.randrange(4)) if depth else ()
    text = "".join(rng.choices('"\\ :,[]-.e19', k=rng.randrange(20)))
    near = rng.choice((-1, 1)) * 2**53 + rng.randrange(-3, 4)
    return rng.choice(
        (
            [made_json(rng, depth - 1) for _ in many],
            {f"{text}{place}": made_json(rng, depth - 1) for place in many},
            text,
            str(near),
            near,
            rng.randrange(-(2**70), 2**70),
            rng.random(),
            None,
        )
    )


def test_json_is_read_and_written_exactly() -> None:
    rng = random.Random(0)
    values = [made_json(rng) for _ in range(500)]
    values += [{"$int": "1234567890123456789"}, {"a": 1234567890123456789}]
    texts = [json.dumps(value) for value in values]
    body = "return given.map((text) => m.jsonText(m.parseJson(text), 2))"

    assert [
        json.loads(text) for text in in_node("lib/exact_json.js", body, texts)
    ] == values


def test_an_integer_that_a_number_has_stays_a_number() -> None:
    body = "return given.map((text) => typeof m.parseJson(text))"
    texts = ["9007199254740991", "1234567890123456.5", "1e300", "9007199254740993"]

    assert in_node("lib/exact_json.js", body, texts) == [
        "number",
        "number",
        "number",
        "bigint",
    ]


@pytest.mark.parametrize("value", ["none", "any", "1..2", "a,b", "t*", ""])
def test_a_value_that_would_mean_something_else_is_quoted(value: str) -> None:
    assert (
        in_node("lib/query.js", "return m.term('source', given)", value)
        == f'source:"{value}"'
    )


@pytest.mark.parametrize("dtype", ["<f4", "<i4", "|i1", "<f8"])
def test_an_array_arrives_as_it_was_sent(dtype: str) -> None:
    sent = np.array([0, 1, -7, 100], dtype)
    packed = {"dtype": dtype, "data": base64.b64encode(sent.tobytes()).decode()}

    assert in_node("lib/arrays.js", "return [...m.decode(given)]", packed) == sent.tolist()


def test_an_array_of_an_unknown_kind_is_refused() -> None:
    body = "try { m.decode(given); } catch (error) { return error.message; }"

    assert "dtype <c8; expected one of <f4" in in_node(
        "lib/arrays.js", body, {"dtype": "<c8", "data": ""}
    )


ALIGN = """
const typed = ({ ids, turn, kinds }) =>
    ({ ids: Int32Array.from(ids), turn: Int32Array.from(turn), kinds: Int8Array.from(kinds) });
const { rows, differs, diverges, first } = m.align(given.map(typed));
return { rows: rows.map((row) => [...row]), differs: [...differs], diverges: [...diverges], first };
"""


def sequence(ids: Sequence[int], turn: Sequence[int] = ()) -> dict[str, list[int]]:
    return {"ids": list(ids), "turn": list(turn) or [0] * len(ids), "kinds": [1] * len(ids)}


def test_siblings_part_where_their_tokens_do() -> None:
    found = in_node(
        "workers/alignment.js",
        ALIGN,
        [sequence([1, 2, 3, 4, 5]), sequence([1, 2, 9, 4, 5])],
    )

    assert found["rows"] == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    assert found["differs"] == [0, 0, 1, 0, 0]
    assert found["first"] == 2
    assert found["diverges"] == [-1, 2]


def test_a_token_more_has_a_column_of_its_own() -> None:
    found = in_node(
        "workers/alignment.js", ALIGN, [sequence([1, 2, 3, 4]), sequence([1, 2, 7, 3, 4])]
    )

    assert found["rows"] == [[0, 1, -1, 2, 3], [0, 1, 2, 3, 4]]
    assert found["differs"] == [0, 0, 1, 0, 0]


def test_turns_are_aligned_with_their_own() -> None:
    # the tokens of turn 1 stand in turn 0 of the other too: they do not match across turns
    found = in_node(
        "workers/alignment.js",
        ALIGN,
        [sequence([1, 2, 8, 9], [0, 0, 1, 1]), sequence([8, 9, 8, 9], [0, 0, 1, 1])],
    )

    assert found["rows"] == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert found["differs"] == [1, 1, 0, 0]


def test_parts_of_a_turn_begin_in_one_column() -> None:
    # what was given is longer in the second, and unlike; what was sampled after it begins together
    one = {"ids": [1, 2, 5, 6], "turn": [0] * 4, "kinds": [0, 0, 1, 1]}
    other = {"ids": [7, 8, 9, 3, 4], "turn": [0] * 5, "kinds": [0, 0, 0, 1, 1]}

    found = in_node("workers/alignment.js", ALIGN, [one, other])

    assert found["rows"] == [[0, 1, -1, 2, 3], [0, 1, 2, 3, 4]]


def longest_common(a: Sequence[int], b: Sequence[int]) -> int:
    lengths = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            lengths[i + 1][j + 1] = (
                lengths[i][j] + 1 if x == y else max(lengths[i][j + 1], lengths[i + 1][j])
            )
    return lengths[-1][-1]


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(*[st.lists(st.integers(0, 3), max_size=12)] * 2), min_size=1, max_size=40
    )
)
def test_every_token_has_one_column_in_order(
    pairs: list[tuple[list[int], list[int]]],
) -> None:
    body = f"return given.map((pair) => {{ const given = pair; {ALIGN} }});"
    answers = in_node(
        "workers/alignment.js", body, [[sequence(a), sequence(b)] for a, b in pairs]
    )

    for (a, b), found in zip(pairs, answers, strict=True):
        for ids, row in zip((a, b), found["rows"], strict=True):
            assert [place for place in row if place >= 0] == list(range(len(ids)))
        columns = list(zip(*found["rows"], found["differs"], strict=True))
        equal = [(i, j) for i, j, differs in columns if not differs]
        assert all(a[i] == b[j] for i, j in equal)
        assert all(not (i >= 0 and j >= 0 and a[i] == b[j]) for i, j, d in columns if d)


def test_few_edits_are_the_fewest() -> None:
    # no token occurs once in both, so that only Myers' algorithm matches them
    rng = np.random.default_rng(3)
    pairs = [
        (rng.integers(0, 2, 40).tolist(), rng.integers(0, 2, 36).tolist())
        for _ in range(20)
    ]
    body = """return given.map((pair) => {
        const [a, b] = pair.map((one) => ({ ids: Int32Array.from(one.ids) }));
        const out = [];
        m.fewestEdits(a.ids, 0, a.ids.length, b.ids, 0, b.ids.length, out);
        return out;
    });"""

    answers = in_node(
        "workers/alignment.js", body, [[sequence(a), sequence(b)] for a, b in pairs]
    )
    for (a, b), runs in zip(pairs, answers, strict=True):
        assert sum(size for _, _, size in runs) == longest_common(a, b)
        assert all(a[i : i + size] == b[j : j + size] for i, j, size in runs)
        ends = [(i + size, j + size) for i, j, size in runs]
        assert all(
            i >= e and j >= f for (i, j, _), (e, f) in zip(runs[1:], ends, strict=False)
        )


@pytest.mark.parametrize("kind", ["near", "unrelated", "few words", "one word"])
def test_sixteen_siblings_of_8000_tokens_are_aligned_in_half_a_second(kind: str) -> None:
    body = """
        let state = 7;
        const random = () => (state = (Math.imul(state, 1664525) + 1013904223) >>> 0) / 2 ** 32;
        const N = 8000;
        const vocabulary = { near: 50000, unrelated: 50000, "few words": 50, "one word": 1 }[given];
        const word = () => Math.floor(vocabulary ** random());
        const base = Array.from({ length: N }, word);
        const one = (like) => ({
            ids: Int32Array.from(base, (same) => (like && random() > 0.05 ? same : word())),
            turn: Int32Array.from({ length: N }, (_, i) => Math.floor(i / 2000)),
            kinds: Int8Array.from({ length: N }, (_, i) => Number(i % 2000 > 500)),
        });
        const siblings = Array.from({ length: 16 }, () => one(given === "near"));
        m.align(siblings);
        let best = Infinity;
        for (let i = 0; i < 3; i += 1) {
            const started = process.cpuUsage();  // its own time, whatever else runs
            m.align(siblings);
            best = Math.min(best, process.cpuUsage(started).user / 1000);
        }
        return best;"""

    assert in_node("workers/alignment.js", body, kind) < 500


def test_a_long_equal_stretch_is_folded_and_blocks_fit() -> None:
    body = """
        const size = 200;
        const places = Int32Array.from({ length: size }, (_, i) => i);
        const differs = new Uint8Array(size);
        differs[100] = 1;
        const pieces = [Array(size).fill("ab"), Array(size).fill("xyz")];
        const blocks = m.blocksOf({ rows: [places, places], differs }, pieces, 30, true);
        return blocks.map(({ columns, widths, folded }) =>
            folded ? folded : [columns[0], columns.at(-1), widths.reduce((a, b) => a + b)]);"""

    # 8 columns are kept beside the difference; 30 characters hold ten of width 3
    assert in_node("lib/columns.js", body) == [92, [92, 101, 30], [102, 108, 21], 91]


def test_cells_of_one_look_are_joined_and_padded() -> None:
    body = """
        const block = { columns: [0, 1, 2], widths: [3, 3, 4] };
        const look = (place) => (place < 0 ? "gap" : "given");
        return m.cellsOf(block, Int32Array.from([0, 1, -1]), look, ["a", "\\u6f22\\n"]);"""

    assert in_node("lib/columns.js", body) == [
        {"look": "given", "text": "a  漢↵", "place": 0},
        {"look": "gap", "text": "    ", "place": -1},
    ]


def test_a_smoothed_curve_is_the_weighted_mean_of_what_came_before() -> None:
    made = np.random.default_rng(0)
    lists = [made.normal(size=made.integers(12)).tolist() for _ in range(30)]
    cases = [
        [[None if made.random() < 0.3 else value for value in values], weight]
        for values in lists
        for weight in (0.0, 0.5, 0.9)
    ]
    body = "return given.map(([values, weight]) => m.smoothed(values, weight))"

    for (values, weight), found in zip(
        cases, in_node("lib/curves.js", body, cases), strict=True
    ):
        for place, value in enumerate(values):
            known = [one for one in values[: place + 1] if one is not None]
            powers = weight ** np.arange(len(known) - 1, -1, -1.0)
            wanted = (
                None
                if value is None
                else pytest.approx((powers * known).sum() / powers.sum())
            )
            assert found[place] == wanted


def test_metrics_are_grouped_by_prefix_and_joined_over_their_places() -> None:
    body = """
        const names = ["a/x", "a/y", "alone", "b/x"];
        const times = { step: [1, 2, 3], time: [30, null, 20], value: [0.1, 0.2, 0.3] };
        const at = m.ordered(times, "time");
        return [m.grouped(names, "X"), m.grouped(names, ""), m.unpacked(m.packed(["a b", ",c"])),
                [at("time"), at("value")],
                m.joined([{ x: [1, 3], columns: [[5, 6]] }, { x: [2, 3], columns: [[7, 8]] }]),
                m.positive([1, 0, -2, null])];"""

    assert in_node("lib/curves.js", body) == [
        [["a", ["a/x"]], ["b", ["b/x"]]],
        [["a", ["a/x", "a/y"]], ["", ["alone"]], ["b", ["b/x"]]],
        ["a b", ",c"],
        [[20, 30], [0.3, 0.1]],
        {"x": [1, 2, 3], "columns": [[[5, None, 6]], [[None, 7, 8]]]},
        [1, None, None, None],
    ]


def test_a_legend_leaves_out_what_its_names_have_in_common() -> None:
    cases = [
        ["eval/code/greedy", "eval/code/sampled"],
        ["turns/mean", "tool/calls_per_traj"],
        ["reward/mean", "reward/mean_of_best"],
        ["one/name"],
        [],
    ]

    assert in_node("lib/format.js", "return given.map(m.commonFolder)", cases) == [
        "eval/code/",
        "",
        "reward/",
        "",
        "",
    ]


def test_the_likeliest_tokens_of_a_token_are_found_by_its_place() -> None:
    def packed(values: Sequence[float], dtype: str) -> dict[str, str]:
        data = np.array(values, dtype).tobytes()
        return {"dtype": dtype, "data": base64.b64encode(data).decode()}

    told = {
        "width": 2,
        "tokens": packed([3, 7], "<i4"),
        "ids": packed([11, 12, 13, -1], "<i4"),
        "logprobs": packed([-0.5, -2.0, 0.0, -np.inf], "<f4"),
        "pieces": {"11": "a", "12": "\ufffd", "13": "c"},
        "bytes": {"12": "f0"},
    }
    body = """const all = new m.TokenAlternatives(given);
        return [2, 3, 7, 8].map((token) => all.at(token));"""
    assert in_node("trajectory/token_model.js", body, told) == [
        [],
        [
            {"id": 11, "piece": "a", "logprob": -0.5},
            {"id": 12, "piece": "\ufffd", "hex": "f0", "logprob": -2},
        ],
        [{"id": 13, "piece": "c", "logprob": 0}],
        [],
    ]
