"""BM25 search: ranking, ties, and what finds nothing."""

from __future__ import annotations

import pickle

import pytest

from agentrl.errors import DataError, ToolError
from agentrl.tools import SearchIndex, SearchTool, ToolContext

DOCUMENTS = [
    ("1", "Ada", "The mother of Ada is Eve."),
    ("2", "Eve", "The mother of Eve is Ida."),
    ("3", "Eve", "The city of Eve is Rome."),
    ("4", "", "Nothing to see."),
]


@pytest.fixture(scope="module")
def index() -> SearchIndex:
    return SearchIndex(DOCUMENTS)


def ids(index: SearchIndex, query: str, top_k: int = 4) -> list[str]:
    return [hit.document.id for hit in index.search(query, top_k)]


def test_the_best_match_comes_first(index: SearchIndex) -> None:
    # "eve" is in three documents, twice in 2 and 3; "mother" in 1 and 2: both words single out 2
    assert ids(index, "mother EVE", 1) == ["2"]


def test_only_documents_that_share_a_word_are_found(index: SearchIndex) -> None:
    assert ids(index, "rome nothing") == ["4", "3"]


def test_equal_scores_keep_the_order_given() -> None:
    index = SearchIndex([(str(n), "", "same words here") for n in range(50)])

    assert ids(index, "words", 3) == ["0", "1", "2"]


@pytest.mark.parametrize("query", ["", "unheard", "?!"])
def test_a_query_without_a_known_word_finds_nothing(index: SearchIndex, query: str) -> None:
    assert index.search(query, 3) == []


def test_scores_fall(index: SearchIndex) -> None:
    scores = [hit.score for hit in index.search("the mother of Eve", 4)]

    assert scores == sorted(scores, reverse=True)
    assert min(scores) > 0


def test_an_index_pickles_without_what_was_built(index: SearchIndex) -> None:
    index.search("eve", 1)
    copy = pickle.loads(pickle.dumps(index))

    assert ids(copy, "mother eve", 1) == ["2"]


async def test_the_tool_gives_a_line_a_document(index: SearchIndex) -> None:
    answer = await SearchTool(index, top_k=2).call({"query": "city of eve"}, ToolContext())

    assert answer.splitlines()[0] == "Eve: The city of Eve is Rome."
    assert len(answer.splitlines()) == 2


async def test_the_tool_says_that_nothing_matches(index: SearchIndex) -> None:
    assert (
        await SearchTool(index).call({"query": "zebra"}, ToolContext())
        == "No document matches."
    )


def test_an_empty_corpus_is_refused() -> None:
    with pytest.raises(DataError, match="at least one document, got none"):
        SearchIndex([])


def test_an_id_given_twice_is_refused() -> None:
    with pytest.raises(DataError, match="different ids, got '1' twice"):
        SearchIndex([DOCUMENTS[0], DOCUMENTS[0]])


def test_a_wrong_top_k_is_refused(index: SearchIndex) -> None:
    with pytest.raises(ToolError, match="top_k must be at least 1, got 0"):
        SearchTool(index, top_k=0)
