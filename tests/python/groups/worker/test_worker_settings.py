"""Settings and calls that are refused, each with its message."""

import pytest

from batchqueue import ConfigError, QueueClosedError
from batchqueue.groups import MemoryStreams, Worker
from groups_support.workers import Collected, worker_of


@pytest.fixture
def streams():
    return MemoryStreams("orders")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lease_ms": 200}, "lease_ms is 200; give an int from 500 to 60_000"),
        ({"lease_ms": 2.5}, "lease_ms is 2.5"),
        ({"grace": -1}, "grace is -1; give a finite number from 0 up"),
        ({"capacity": 0}, "capacity is 0"),
        ({"prefetch": 0}, "prefetch is 0"),
        ({"prefetch_bytes": 0}, "prefetch_bytes is 0"),
        ({"max_batch_items": 0}, "max_batch_items is 0"),
        ({"on_failure": "block"}, "on_failure is 'block', a str; give OnFailure"),
        ({"on_gap": "jump"}, 'on_gap is \'jump\'; give "fail" or "skip"'),
        ({"retry": 3}, "retry is 3, an int; give RetryPolicy"),
        ({"start": "latest"}, "start is 'latest'"),
        ({"balancer": "lpt"}, "balancer is 'lpt'"),
        ({"threads": 2}, "threads is 2"),
        ({"codec": "pickle"}, "pickle"),
        ({"name": "a b"}, "the worker's name is 'a b'"),
        ({"on_assign": 1}, "on_assign is 1; give a function"),
    ],
)
def test_bad_settings_name_value_and_limit(streams, settings, message):
    with pytest.raises(ConfigError, match=message):
        Worker("g", streams, **settings)


def test_bad_group_and_source(streams):
    with pytest.raises(ConfigError, match="the group's name is 'a b'"):
        Worker("a b", streams)
    with pytest.raises(ConfigError, match="source is 'orders'; give a stream"):
        Worker("g", "orders")
    with pytest.raises(ConfigError, match="0"):
        MemoryStreams("orders", partitions=0)


def test_a_worker_needs_a_handler(streams):
    with pytest.raises(ConfigError, match=r"has no handler; add one with @worker\.handler"):
        Worker("g", streams).run()


def test_handlers_that_are_refused(streams):
    worker = Worker("g", streams)

    async def coroutine(batch):
        pass

    with pytest.raises(ConfigError, match="must run on an event loop"):
        worker.handler(coroutine)
    with pytest.raises(ConfigError, match="cannot be a handler"):
        worker.handler(5)
    with pytest.raises(ConfigError, match="neither a class nor a str"):
        worker.add_handler(5, print)
    with pytest.raises(ConfigError, match="handler_factory got 5"):
        worker.handler_factory(5)
    worker.add_handler(dict, print)
    with pytest.raises(ConfigError, match="has a handler already"):
        worker.add_handler(dict, print)
    worker.handler(print)
    with pytest.raises(ConfigError, match="a handler for all records already"):
        worker.handler_factory(lambda assignment: print)


def test_handlers_come_before_the_start(streams):
    worker = worker_of(streams, Collected())
    with worker, pytest.raises(ConfigError, match="has been started; add handlers before"):
        worker.add_handler(dict, print)


def test_life_of_a_worker(streams):
    worker = worker_of(streams, Collected())
    with pytest.raises(QueueClosedError, match="has not been started"):
        worker.metrics()
    assert worker.assigned() == {}
    assert worker.leave().handled == 0
    with worker:
        worker.start()
    assert worker.leave() is worker.leave()
    assert worker.metrics().partitions == {}
    with pytest.raises(QueueClosedError, match="has left its group; make another one"):
        worker.start()


def test_decorators_return_what_they_got(streams):
    worker = Worker("g", streams)

    class Handler:
        def consume(self, batch):
            pass

    assert worker.handler(Handler) is Handler
    assert "of group 'g' on 'orders'" in repr(worker)


def test_max_seconds_ends_a_run(streams):
    assert worker_of(streams, Collected()).run(max_seconds=0.2).handled == 0
    with pytest.raises(ConfigError, match="max_seconds is -1"):
        worker_of(streams, Collected()).run(max_seconds=-1)
