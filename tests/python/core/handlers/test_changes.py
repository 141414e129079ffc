"""Handlers that are replaced, removed and added again while the queue runs."""

import pytest

from batchqueue import ConfigError, QueueClosedError
from core_support.handlers import Held, Recorder
from core_support.queues import assert_conserved
from core_support.threads import in_background, join
from core_support.waits import WAIT_S, eventually


def hold_second_batch(queue, handler):
    """Finishes one batch, which distinguishes the handler from a new one, and holds `1`."""
    handler.released.set()
    queue.produce(0)
    assert queue.flush(WAIT_S)
    handler.released.clear()
    handler.entered.clear()
    handler.hold(queue, 1)


def is_published(queue):
    """Whether items of int no longer go to the handler that has finished a batch."""
    handlers = queue.stats().handlers()
    return int not in handlers or handlers[int].consumed == 0


def test_replaced_handler_keeps_its_batches_and_is_closed_once(make_queue):
    queue = make_queue()
    first, second = Recorder(), Recorder()
    queue.add_handler(int, first)
    queue.produce_many([1, 2])
    assert queue.flush(WAIT_S)
    queue.add_handler(int, second, replace=True)
    assert (first.items, first.closed) == ([1, 2], 1), "when the call returns, the old one is done"
    queue.produce_many([3, 4])
    assert queue.shutdown(WAIT_S) == 0
    assert (first.items, first.closed) == ([1, 2], 1)
    assert (second.items, second.closed) == ([3, 4], 1)


@pytest.mark.parametrize(
    ("name", "item_type"), [("Order", type("Order", (), {})), ('"rows"', "rows")]
)
def test_second_handler_of_a_type_is_an_error_without_replace(make_queue, name, item_type):
    """The items of the first would go to the second without a word."""
    queue = make_queue()
    first, second = Recorder(), Recorder()
    queue.add_handler(item_type, first)
    for add in (
        lambda: queue.add_handler(item_type, second),
        lambda: queue.add_handler(item_type, first),
        lambda: queue.handler(item_type)(second),
        lambda: queue.add_handler_factory(item_type, Recorder, partitions=1),
    ):
        with pytest.raises(ConfigError, match=f"{name} has a handler already; pass replace=True"):
            add()
    assert (first.closed, second.closed) == (0, 0)
    assert queue.remove_handler(item_type)
    queue.add_handler(item_type, second)
    assert queue.shutdown(WAIT_S) == 0
    assert (first.closed, second.closed) == (1, 1)


def test_type_keeps_its_partition_until_it_is_removed(make_queue):
    queue = make_queue(threads=2, partitions=4)
    for item_type in (int, str, float):
        queue.add_handler(item_type, Recorder())
    queue.add_handler(str, Recorder(), replace=True)
    assert queue.remove_handler(int)
    assert [queue.stats().partition(index).types for index in range(4)] == [
        (),
        (str,),
        (float,),
        (),
    ]
    # The next new type gets the partition.
    queue.add_handler(bytes, Recorder())
    queue.add_handler(int, Recorder())
    assert [queue.stats().partition(index).types for index in range(4)] == [
        (bytes,),
        (str,),
        (float,),
        (int,),
    ]


def test_same_instance_may_come_back(make_queue):
    """It is closed once for each time it was removed."""
    queue = make_queue()
    handler = Recorder()
    for number in range(3):
        queue.add_handler(int, handler)
        queue.produce(number)
        assert queue.flush(WAIT_S)
        assert queue.remove_handler(int)
        assert handler.closed == number + 1
    assert queue.shutdown(WAIT_S) == 0
    assert (handler.items, handler.closed) == ([0, 1, 2], 3)


def test_replacing_a_handler_with_itself_does_not_close_it(make_queue):
    queue = make_queue()
    handler = Recorder()
    queue.add_handler(int, handler)
    queue.add_handler(int, handler, replace=True)
    queue.produce(1)
    assert queue.flush(WAIT_S)
    assert (handler.items, handler.closed) == ([1], 0)
    assert queue.shutdown(WAIT_S) == 0
    assert handler.closed == 1


@pytest.mark.parametrize("change", ["remove", "replace"])
@pytest.mark.parametrize("threads", [1, 3])
def test_change_waits_for_the_running_batch_and_for_on_close(make_queue, change, threads):
    queue = make_queue(threads=threads)
    old = Held()
    queue.add_handler(int, old)
    hold_second_batch(queue, old)

    def make_change():
        if change == "remove":
            assert queue.remove_handler(int)
        else:
            queue.add_handler(int, Recorder(), replace=True)
        return old.released.is_set(), old.items, old.closed

    changer, outcome = in_background(make_change)
    eventually(lambda: is_published(queue), "the change is published")
    assert outcome == []
    old.released.set()
    join(changer)
    assert outcome == [(True, [0, 1], 1)]


@pytest.mark.parametrize("change", ["remove", "replace"])
def test_items_queued_at_a_removal_are_unhandled_or_go_to_the_new_handler(make_queue, change):
    queue = make_queue(max_batch_items=1)
    old, new = Held(), Recorder()
    queue.add_handler(int, old)
    hold_second_batch(queue, old)
    queue.produce_many([2, 3, 4])
    replace = change == "replace"
    changer, _ = in_background(
        lambda: queue.add_handler(int, new, replace=True) if replace else queue.remove_handler(int)
    )
    eventually(lambda: is_published(queue), "the change is published")
    old.released.set()
    join(changer)
    assert queue.flush(WAIT_S)
    assert (old.items, new.items) == ([0, 1], [2, 3, 4] if replace else [])
    assert queue.stats().unhandled == (0 if replace else 3)
    assert_conserved(queue.stats())


@pytest.mark.parametrize("threads", [1, 2])
def test_handler_may_replace_and_remove_handlers_without_a_wait(make_queue, threads):
    """Itself and others: the call returns while the batch still runs."""
    queue = make_queue(threads=threads)
    others, returned, after = Recorder(), [], Recorder()

    class Changes(Recorder):
        def consume(self, batch):
            super().consume(batch)
            queue.add_handler(int, after, replace=True)
            returned.append(queue.remove_handler(str))
            returned.append(queue.remove_handler(str))
            returned.append((self.closed, others.closed))

    first = Changes()
    queue.add_handler(int, first)
    queue.add_handler(str, others)
    queue.produce(1)
    eventually(lambda: first.closed and others.closed, "both old handlers are closed")
    assert returned[:2] == [True, False]
    assert returned[2][0] == 0, "the running handler cannot have been closed"
    queue.produce_many([2, "text"])
    assert queue.shutdown(WAIT_S) == 0
    assert (first.items, after.items, others.items) == ([1], [2], [])
    assert (first.closed, after.closed, others.closed) == (1, 1, 1)
    assert queue.stats().unhandled == 1


@pytest.mark.parametrize("method", ["on_close", "on_idle", "on_error"])
def test_handlers_may_be_changed_from_every_call(make_queue, method):
    queue = make_queue(min_idle_ms=0, max_idle_ms=1)
    done = []

    def change(*_):
        if not done:
            queue.add_handler(str, Recorder())
            queue.add_handler(str, Recorder(), replace=True)
            done.append(queue.remove_handler(str))

    class Handler(Recorder):
        def consume(self, batch):
            if method == "on_error":
                raise ValueError

    setattr(Handler, method, change)
    queue.add_handler(int, Handler())
    queue.produce(1)
    assert queue.flush(WAIT_S)
    if method == "on_close":
        assert queue.remove_handler(int)
    eventually(lambda: done, method)
    assert done == [True]


def test_decorator_replaces_the_handler_too(make_queue):
    queue = make_queue()
    old = Recorder()
    queue.add_handler(int, old)
    seen = []

    @queue.handler(int, weight=0.5, replace=True)
    def take(batch):
        seen.extend(batch)

    queue.produce(1)
    assert queue.flush(WAIT_S)
    assert (seen, old.items, old.closed) == ([1], [], 1)
    assert take([2]) is None
    assert seen == [1, 2], "the name is still the function"


def test_changes_on_a_queue_that_was_shut_down_raise(make_queue):
    queue = make_queue()
    handler = Recorder()
    queue.add_handler(int, handler)
    assert queue.shutdown(WAIT_S) == 0
    assert queue.remove_handler(int) is False
    assert queue.remove_handler(str) is False
    for call in (
        lambda: queue.add_handler(int, Recorder()),
        lambda: queue.add_handler(str, Recorder()),
        lambda: queue.handler(int)(len),
        lambda: queue.add_handler_factory(bytes, Recorder, partitions=1),
    ):
        with pytest.raises(QueueClosedError, match=r"shut down.*make a new BatchQueue"):
            call()
    assert handler.closed == 1


def test_invalid_type_or_handler_changes_nothing(make_queue):
    queue = make_queue()
    handler = Recorder()
    queue.add_handler(int, handler)
    with pytest.raises(ConfigError):
        queue.add_handler(int, object())
    with pytest.raises(ConfigError, match="item_type is 5; give a class"):
        queue.remove_handler(5)
    queue.produce(1)
    assert queue.shutdown(WAIT_S) == 0
    assert (handler.items, handler.closed) == ([1], 1)
