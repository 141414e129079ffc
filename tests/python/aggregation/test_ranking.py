"""Rankings against sorting all rows: any order, ties by id, bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchqueue.aggregation import MergeBuffer, RankedEntry, Ranking, metric_type

TOP_3 = metric_type("test.top_3", Ranking, limit=3)
ROWS = st.lists(
    st.tuples(st.none() | st.integers(-3, 3), st.sampled_from("abcde"), st.sampled_from("xy"))
)


def best(rows, limit):
    ranked = sorted(
        (row for row in rows if row[0] is not None), key=lambda row: (-row[0], row[1], row[2])
    )
    return [RankedEntry(*row) for row in ranked[:limit]]


@given(st.lists(ROWS, min_size=1, max_size=5))
def test_merging_partial_rankings_gives_the_ranking_of_all_rows(sources):
    """Few scores, ids and labels, so that every kind of tie and duplicate occurs."""
    whole = MergeBuffer()
    for rows in sources:
        partial = MergeBuffer()
        partial.accept_all(TOP_3("day", 0, *row) for row in rows)
        whole.accept_all(partial.drain())
    merged = whole.drain()
    entries = merged[0].entries if merged else []
    assert entries == best([row for rows in sources for row in rows], 3)


def test_ints_and_floats_keep_their_type_and_a_missing_score_is_not_ranked():
    ranking = TOP_3("day", 0, 2**60 + 1, "big")
    ranking.combine(TOP_3("day", 0, 0.5, "small"))
    ranking.combine(TOP_3("day", 0, None, "none"))
    assert ranking.to_rows() == [(2**60 + 1, "big", ""), (0.5, "small", "")]


def test_ranking_that_went_through_rows_continues_where_it_was():
    ranking = TOP_3("day", 0, 5, "b", "label")
    ranking.combine(TOP_3("day", 0, 7, "a"))
    again = TOP_3.from_rows("day", 0, ranking.to_rows())
    assert again == ranking
    again.combine(TOP_3("day", 0, 6, "c"))
    assert [entry.id for entry in again.entries] == ["a", "c", "b"]


def test_nan_score_is_rejected_with_the_remedy():
    with pytest.raises(
        ValueError, match=r"score of 'UA1' in test\.top_3 is NaN.*give a number or None"
    ):
        TOP_3("day", 0, float("nan"), "UA1")
