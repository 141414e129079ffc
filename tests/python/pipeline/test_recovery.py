"""Which cut counts, for each way in which a checkpoint and sinks may differ."""

import pytest

from batchqueue.pipeline import CutError
from batchqueue.pipeline.runner.checkpoint import StoredCut, recover


def cut(number):
    return StoredCut(number, {"orders": {"at": number * 10}})


def decided(kept, **sinks):
    return recover([cut(n) for n in kept], {k: v and cut(v) for k, v in sinks.items()})


@pytest.mark.parametrize(
    ("kept", "sinks", "number"),
    [
        ([], {}, 0),
        ([], {"a": None}, 0),
        ([], {"a": None, "b": None}, 0),
        ([0], {"a": None}, 0),
        ([0, 1], {}, 1),
        ([0, 1], {"a": None}, 0),
        ([0, 1], {"a": 1}, 1),
        ([4, 5], {}, 5),
        ([4, 5], {"a": 4}, 4),
        ([4, 5], {"a": 5}, 5),
        ([4, 5], {"a": 5, "b": 5}, 5),
        ([4, 5], {"a": 4, "b": 4}, 4),
        ([], {"a": 7}, 7),
        ([], {"a": 7, "b": 7}, 7),
    ],
)
def test_all_agree(kept, sinks, number):
    found = decided(kept, **sinks)
    assert (found.cut, found.replay_to, found.ahead) == (number, None, frozenset())
    assert found.positions == ({"orders": {"at": number * 10}} if number or kept else {})


@pytest.mark.parametrize(
    ("kept", "sinks", "number", "ahead"),
    [
        ([4, 5], {"a": 4, "b": 5}, 4, {"b"}),
        ([4, 5], {"a": 5, "b": 4, "c": 5}, 4, {"a", "c"}),
        ([0, 1], {"a": None, "b": 1}, 0, {"b"}),
        ([], {"a": None, "b": 1}, 0, {"b"}),
        ([], {"a": 6, "b": 7}, 6, {"b"}),
    ],
)
def test_the_older_sink_decides_and_the_others_skip(kept, sinks, number, ahead):
    found = decided(kept, **sinks)
    assert (found.cut, found.ahead) == (number, ahead)
    assert found.replay_to == {"orders": {"at": (number + 1) * 10}}


@pytest.mark.parametrize(
    ("kept", "sinks", "message"),
    [
        ([4, 5], {"a": None}, "sink 'a' has cut 0 and the checkpoint has cut 4 and cut 5"),
        ([4, 5], {"a": 6}, "sink 'a' has cut 6 and the checkpoint has cut 4 and cut 5"),
        ([4, 5], {"a": 5, "b": 3}, "sink 'b' has cut 3 and the checkpoint has cut 4 and cut 5"),
        ([0], {"a": 1}, "sink 'a' has cut 1 and the checkpoint has cut 0;"),
        ([], {"a": 5, "b": 7}, "sink 'a' has cut 5 and sink 'b' has cut 7"),
        ([], {"a": 2, "b": None}, "sink 'b' has cut 0 and sink 'a' has cut 2"),
    ],
)
def test_a_larger_difference_is_an_error_that_names_both_cuts(kept, sinks, message):
    with pytest.raises(CutError, match=message):
        decided(kept, **sinks)
