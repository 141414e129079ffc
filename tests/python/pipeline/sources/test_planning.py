"""Plans are as long as their limit allows, whatever the sizes of the splits are."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batchqueue.pipeline import Limit, Split
from batchqueue.pipeline.sources.splits import within

SIZES = st.lists(st.tuples(st.none() | st.integers(0, 50), st.none() | st.integers(0, 50)))


def splits_of(sizes):
    return [
        Split("0", {"at": at}, {"at": at + 1}, rows, size, None)
        for at, (rows, size) in enumerate(sizes)
    ]


@given(SIZES, st.integers(1, 120), st.integers(1, 120))
@example([(50, 1)] * 3, 120, 120)
@example([(1, 50)] * 3, 120, 120)
@example([(50, 50)] * 2, 1, 1)
@example([(1, 1), (None, 1), (1, 1)], 120, 120)
@example([(1, 1), (1, None), (1, 1)], 120, 120)
def test_a_plan_has_the_longest_beginning_within_its_limit_and_at_least_one_split(
    sizes, rows, size
):
    splits = splits_of(sizes)
    plan = within(iter(splits), {"at": 0}, Limit(rows, size))
    taken = list(plan.splits)
    assert taken == splits[: len(taken)]
    assert plan.end == ({"at": len(taken)} if taken else {"at": 0})
    if not splits:
        assert taken == []
        return
    assert taken
    known = [each.rows is not None and each.bytes is not None for each in taken]
    assert len(taken) == 1 or all(known)
    if len(taken) > 1:
        assert sum(each.rows for each in taken) <= rows
        assert sum(each.bytes for each in taken) <= size
    if len(taken) < len(splits) and all(known):
        following = splits[len(taken)]
        is_unknown = following.rows is None or following.bytes is None
        total_rows = sum(each.rows for each in taken)
        total_size = sum(each.bytes for each in taken)
        is_full = total_rows >= rows or total_size >= size
        assert (
            is_unknown
            or is_full
            or (total_rows + following.rows > rows or total_size + following.bytes > size)
        )


def test_what_comes_before_an_error_is_read_first():
    def steps(count):
        yield from splits_of([(1, 1)] * count)
        raise ValueError("broken")

    assert len(within(steps(3), {"at": 0}, Limit(10, 10)).splits) == 3
    with pytest.raises(ValueError, match="broken"):
        within(steps(0), {"at": 0}, Limit(10, 10))


def test_nothing_is_asked_for_once_the_limit_is_reached():
    asked = []

    def steps():
        for split in splits_of([(5, 1)] * 4):
            asked.append(split)
            yield split

    assert len(within(steps(), {"at": 0}, Limit(10, 100)).splits) == 2
    assert len(asked) == 2
