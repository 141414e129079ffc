"""Removal of a handler that hangs: the caller waits as long as it wants."""

import pytest

from core_support.handlers import Held, Recorder
from core_support.waits import WAIT_S, eventually


def test_removal_of_a_handler_that_hangs_waits_as_long_as_it_may(make_queue):
    queue, hung = make_queue(threads=2, partitions=2), Held()
    queue.add_handler(int, hung)
    hung.hold(queue, 1)
    assert queue.produce(2)
    assert queue.remove_handler(int, timeout=0.01) is False
    assert queue.remove_handler(int) is False, "it has no handler any more"
    assert hung.closed == 0
    hung.released.set()
    eventually(lambda: hung.closed == 1, "its last call")
    eventually(lambda: queue.stats().unhandled == 1, "the item behind the call")
    assert hung.items == [1]


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_removal_with_an_invalid_timeout_removes_nothing(make_queue, timeout):
    queue, recorder = make_queue(), Recorder()
    queue.add_handler(int, recorder)
    with pytest.raises(ValueError, match="timeout"):
        queue.remove_handler(int, timeout=timeout)
    assert queue.produce(1)
    assert queue.shutdown(WAIT_S) == 0
    assert recorder.items == [1]
