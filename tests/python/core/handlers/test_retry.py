"""Retries: a batch is retried in place, counts once, and keeps its order."""

import gc
import os
import pickle
import signal
import threading
import time
import weakref
from functools import partial

import pytest

from batchqueue import ConfigError, RetryPolicy, _core
from batchqueue.queues.config import longest_wait_ms, wait_ms
from core_support.handlers import Recorder
from core_support.queues import assert_conserved, config, try_once_more
from core_support.scripts import run_script
from core_support.threads import in_background, join
from core_support.waits import WAIT_S, eventually

IMMEDIATELY = {"backoff_ms": 0}
NEVER = {"backoff_ms": 86_400_000, "max_backoff_ms": 86_400_000}
"""A wait that only the end of a shutdown can end during the test."""


class Flaky(Recorder):
    """Raises at the first `failures` attempts of each batch."""

    def __init__(self, failures, error=ValueError):
        super().__init__()
        self.failures, self.error = failures, error
        self.tries = []

    def consume(self, batch):
        self.tries.append(list(batch))
        if sum(attempt == self.tries[-1] for attempt in self.tries) <= self.failures:
            raise self.error("as planned")
        super().consume(batch)


def retried(make_queue, handler, settings=IMMEDIATELY, error_handler=None, **options):
    queue = make_queue(
        settings=config(
            retry=RetryPolicy(**settings),
            error_handler=error_handler,
            **{"min_idle_ms": 60_000, **options},
        )
    )
    queue.add_handler(int, handler)
    return queue


def test_first_failed_attempt_is_logged_with_its_error_and_the_wait(make_queue, caplog):
    queue = retried(make_queue, Flaky(failures=2), {"attempts": 3, "backoff_ms": 1})
    queue.produce_many([1, 2, 3])
    assert queue.shutdown(WAIT_S) == 0
    assert queue.stats().consumed == 3
    lines = [line for line in caplog.messages if "tried again" in line]
    assert len(lines) == 1, lines
    assert lines[0].endswith(
        "3 items of int are tried again in 1 ms, as attempt 1 of 3 failed: ValueError: as planned"
    )


def test_first_halving_is_logged_where_there_is_one_attempt(make_queue, caplog):
    queue = retried(make_queue, Flaky(failures=1), {"attempts": 1, "bisect": True}, lambda *_: None)
    queue.produce_many([1, 2])
    assert queue.shutdown(WAIT_S) == 0
    lines = [line for line in caplog.messages if "halved" in line]
    assert len(lines) == 1, lines
    assert "2 items of int are halved, as their batch failed: ValueError: as planned" in lines[0]


@pytest.mark.parametrize("attempts", [1, 2, 3, 7])
def test_attempts_counts_the_first_one_too(make_queue, attempts):
    handler = Flaky(failures=1_000)
    queue = retried(make_queue, handler, {"attempts": attempts, **IMMEDIATELY}, lambda *_: None)
    queue.produce_many([1, 2, 3])
    assert queue.flush(WAIT_S)
    assert handler.tries == [[1, 2, 3]] * attempts
    stats = queue.stats()
    assert (stats.consumed, stats.failed) == (0, 3)
    assert (stats.handlers()[int].failed, stats.handlers()[int].batches) == (3, 1)


def test_default_is_three_attempts(make_queue):
    handler = Flaky(failures=2)
    queue = retried(make_queue, handler)
    queue.produce(1)
    assert queue.flush(WAIT_S)
    assert handler.tries == [[1]] * 3


def test_batch_is_attempted_once_without_a_policy(make_queue):
    handler = Flaky(failures=1)
    queue = make_queue(error_handler=lambda *_: None)
    queue.add_handler(int, handler)
    queue.produce(1)
    assert queue.flush(WAIT_S)
    assert (handler.tries, queue.stats().failed) == ([[1]], 1)


def test_retry_ends_at_the_first_success_and_the_batch_counts_once_as_consumed(make_queue, caplog):
    handler, reported = Flaky(failures=1), []
    queue = retried(make_queue, handler, error_handler=lambda *args: reported.append(args))
    queue.produce_many([1, 2])
    assert queue.flush(WAIT_S)
    assert handler.items == [1, 2]
    stats = queue.stats()
    assert (stats.consumed, stats.failed, stats.handlers()[int].batches) == (2, 0, 1)
    assert_conserved(stats)
    assert reported == []
    assert len(caplog.records) == 1, "that it is tried again"


def test_only_the_listed_exceptions_are_retried(make_queue):
    for kinds, error, tries in (
        ((KeyError, OSError), KeyError, 3),
        ((KeyError, OSError), ConnectionError, 3),
        ((KeyError, OSError), ValueError, 1),
        ((Exception,), KeyboardInterrupt, 1),
        ((BaseException,), KeyboardInterrupt, 3),
        ((), ValueError, 1),
    ):
        handler = Flaky(1_000, error)
        queue = retried(make_queue, handler, {"retry_on": kinds, **IMMEDIATELY}, lambda *_: None)
        queue.produce(1)
        assert queue.flush(WAIT_S)
        assert len(handler.tries) == tries, (kinds, error)
        assert queue.stats().failed == 1


def test_on_error_is_called_once_after_the_last_attempt(make_queue):
    class Reports(Flaky):
        def on_error(self, batch, error):
            reported.append((list(batch), str(error), len(self.tries)))

    reported = []
    for kinds, tries in (((ValueError,), 3), ((KeyError,), 1)):
        reported.clear()
        policy = {"retry_on": kinds, **IMMEDIATELY}
        queue = retried(
            make_queue, Reports(failures=1_000), policy, lambda *_: reported.append("second")
        )
        queue.produce_many([1, 2])
        assert queue.flush(WAIT_S)
        assert reported == [([1, 2], "as planned", tries)]


def test_error_handler_gets_the_last_error_after_the_last_attempt(make_queue):
    reported = []

    def consume(batch):
        raise ValueError(f"try {len(tries)}" if not tries.append(1) else "")

    tries = []
    queue = retried(
        make_queue, consume, error_handler=lambda batch, error: reported.append((batch, str(error)))
    )
    queue.produce(1)
    assert queue.flush(WAIT_S)
    assert reported == [([1], "try 3")]


def test_each_attempt_gets_its_own_list(make_queue):
    """An attempt's changes to its list, and the other lists, are invisible to the next attempt."""
    lists, reported = [], []

    def consume(batch):
        lists.append(batch)
        seen.append(list(batch))
        batch.clear()
        raise ValueError

    seen = []
    queue = retried(make_queue, consume, error_handler=lambda batch, error: reported.append(batch))
    queue.produce_many([1, 2, 3])
    assert queue.flush(WAIT_S)
    assert seen == [[1, 2, 3]] * 3
    assert len({id(batch) for batch in lists}) == 3
    assert reported[0] is lists[-1], "as the last attempt left it"


def test_order_is_kept_because_the_partition_waits(make_queue):
    handler = Flaky(failures=1)
    queue = retried(make_queue, handler, max_batch_items=5)
    queue.produce_many(range(300))
    assert queue.flush(WAIT_S)
    assert handler.items == list(range(300))
    assert len(handler.tries) == 2 * len(handler.batches)


def test_handler_is_free_for_others_between_two_attempts(make_queue):
    """The wait is outside the handler: another thread's batch of another type can enter it."""
    failed = threading.Event()

    class OneFails(Recorder):
        def consume(self, batch):
            if type(batch[0]) is int and not failed.is_set():
                failed.set()
                raise ValueError
            super().consume(batch)

    handler = OneFails()
    queue = make_queue(settings=config(threads=2, retry=RetryPolicy(**NEVER)))
    queue.add_handler(int, handler)
    queue.add_handler(str, handler, replace=True)
    queue.produce(1)
    assert failed.wait(WAIT_S)
    queue.produce("meanwhile")
    eventually(lambda: handler.items == ["meanwhile"], "the other type's batch")
    try_once_more(queue)
    assert queue.shutdown(WAIT_S) == 0
    assert handler.items == ["meanwhile", 1]


class Sink(Recorder):
    """Is down until `up` is set; each attempt until then takes `slow_s`."""

    def __init__(self, slow_s=0):
        super().__init__()
        self.up, self.slow_s, self.tries = threading.Event(), slow_s, 0

    def consume(self, batch):
        self.tries += 1
        if not self.up.wait(self.slow_s):
            raise ConnectionError("down")
        super().consume(batch)


@pytest.mark.parametrize("timeout", [WAIT_S, None])
@pytest.mark.parametrize("attempts", [1_000, None])
def test_shutdown_leaves_back_offs_their_length(make_queue, attempts, timeout):
    sink = Sink()
    policy = {"attempts": attempts, "backoff_ms": 20, "factor": 1}
    queue = retried(make_queue, sink, policy)
    queue.produce_many([1, 2])
    began = time.monotonic()
    closing, abandoned = in_background(lambda: queue.shutdown(timeout))
    eventually(lambda: not queue.running, "the close")
    tries = sink.tries
    eventually(lambda: sink.tries >= tries + 10, "ten more attempts")
    assert time.monotonic() - began >= 9 * 0.020
    sink.up.set()
    join(closing)
    assert (abandoned, sink.items, sink.closed) == ([0], [1, 2], 1)
    assert_conserved(queue.stats())


def test_last_attempt_comes_shortly_before_the_end_of_a_shutdown(make_queue):
    """An attempt has taken a second, so the last one begins 2.1 s before the end."""
    sink = Sink(slow_s=1)
    queue = retried(make_queue, sink, {"attempts": None, **NEVER})
    queue.produce(1)
    flusher, flushed = in_background(lambda: queue.flush(WAIT_S))
    eventually(lambda: queue.stats().held == 1, "the first attempt")
    sink.up.set()
    assert queue.shutdown(6) == 0
    join(flusher)
    assert (flushed, sink.tries, sink.items, sink.closed) == ([True], 2, [1], 1)
    assert_conserved(queue.stats())


def test_what_fails_in_the_last_attempt_has_failed_and_is_reported_in_time(make_queue):
    sink, reported, letters = Sink(slow_s=1), [], []
    policy = {"attempts": None, **NEVER}
    queue = retried(
        make_queue,
        sink,
        policy,
        error_handler=lambda batch, error: reported.append((batch, str(error))),
        dead_letter=letters.extend,
        min_idle_ms=0,
    )
    queue.produce(1)
    eventually(lambda: queue.stats().held == 1, "the first attempt")
    assert queue.shutdown(6) == 0
    assert sink.tries == 2
    assert reported == [([1], "down")]
    assert [(letter.item, letter.attempts) for letter in letters] == [(1, 2)]
    assert queue.stats().dead_lettered == 1
    assert_conserved(queue.stats())


def test_shutdown_without_end_ends_when_another_one_has_a_deadline(make_queue):
    """The way out of `attempts=None` and `shutdown()`."""
    sink = Sink(slow_s=1)
    policy = {"attempts": None, **NEVER}
    queue = retried(make_queue, sink, policy, lambda *_: None, min_idle_ms=0)
    queue.produce(1)
    eventually(lambda: queue.stats().held == 1, "the first attempt")
    closing, abandoned = in_background(lambda: queue.shutdown())
    eventually(lambda: not queue.running, "the close")
    assert queue.shutdown(6) == 0
    join(closing)
    assert (abandoned, sink.tries, queue.stats().failed) == ([0], 2, 1)


def test_ctrl_c_ends_a_shutdown_without_end_and_the_queue_continues(make_queue):
    sink = Sink()
    queue = retried(make_queue, sink, {"attempts": None, "backoff_ms": 20, "factor": 1})
    queue.produce(1)

    def interrupt():
        eventually(lambda: not queue.running, "the close")
        os.kill(os.getpid(), signal.SIGINT)

    thread, _ = in_background(interrupt)
    with pytest.raises(KeyboardInterrupt):
        queue.shutdown()
    join(thread)
    tries = sink.tries
    eventually(lambda: sink.tries > tries, "another attempt")
    sink.up.set()
    assert queue.shutdown() == 0
    assert sink.items == [1]


def test_exit_makes_the_last_attempt_in_the_time_of_the_settings():
    code, out, err = run_script(
        """
        import threading

        from batchqueue import BatchQueue, BatchQueueConfig, RetryPolicy, ThreadPolicy

        day, tries = 86_400_000, []

        def consume(batch):
            tries.append(batch)
            if len(tries) == 1:
                threading.Event().wait(1)  # so the last attempt begins two seconds before the end
                raise ConnectionError("down")
            print("stored", batch)

        config = BatchQueueConfig(
            threads=ThreadPolicy.fixed(1),
            retry=RetryPolicy(attempts=None, backoff_ms=day, max_backoff_ms=day),
            shutdown_timeout=6,
        )
        queue = BatchQueue("exit", config)
        queue.add_handler(int, consume)
        queue.produce(1)
        """
    )
    assert (code, out) == (0, ["stored [1]"]), err


def test_shutdown_that_times_out_abandons_the_retried_batch_once(make_queue):
    held = threading.Event()

    def consume(batch):
        tries.append(len(batch))
        if len(tries) > 1:
            assert held.wait(WAIT_S)
        raise ValueError

    tries = []
    queue = retried(make_queue, consume, NEVER, lambda *_: None)
    queue.produce_many([1, 2])
    flusher, _ = in_background(lambda: queue.flush(WAIT_S))
    eventually(lambda: tries == [2], "the first attempt")
    _core.close_to_outside(queue, 0)
    eventually(lambda: tries == [2, 2], "the last attempt")
    assert queue.shutdown(0.05) == 2
    held.set()
    join(flusher)
    eventually(lambda: queue.stats().in_flight == 0, "the abandoned batch returns")
    assert_conserved(queue.stats())
    assert (queue.stats().abandoned, queue.stats().failed) == (2, 0)


def test_consumers_are_retried_too(make_queue):
    handler = Flaky(failures=1)
    queue = make_queue(consumer=handler, retry=RetryPolicy(**IMMEDIATELY))
    queue.produce_many([1, "a"])
    assert queue.flush(WAIT_S)
    assert handler.items == [1, "a"]
    assert queue.stats().consumed == 2


def test_policy_is_a_value():
    policy = RetryPolicy(
        attempts=5, backoff_ms=1.5, factor=3, max_backoff_ms=9, retry_on=(OSError, KeyError)
    )
    assert RetryPolicy() == RetryPolicy(
        attempts=3, backoff_ms=100, factor=2.0, max_backoff_ms=5_000, retry_on=(Exception,)
    )
    assert pickle.loads(pickle.dumps(policy)) == policy != RetryPolicy()
    assert hash(pickle.loads(pickle.dumps(policy))) == hash(policy)
    assert eval(repr(policy).replace("<class '", "").replace("'>", "")) == policy
    with pytest.raises(AttributeError):
        policy.attempts = 6
    with pytest.raises(TypeError):
        RetryPolicy(5)


def test_waits_grow_up_to_the_longest_one():
    """As Python reckons them, for workers of groups, commits on Spark and processes."""
    retry = RetryPolicy(attempts=None, backoff_ms=10, factor=3, max_backoff_ms=100)
    waits = [wait_ms(retry, tries) for tries in (1, 2, 3, 4, 1_000_000)]
    assert waits == [10, 30, 90, 100, 100]
    assert wait_ms(RetryPolicy(backoff_ms=10, max_backoff_ms=5), 1) == 5
    assert wait_ms(RetryPolicy(attempts=None, backoff_ms=0), 1_000_000) == 0


def test_chance_cuts_off_a_share_of_a_wait():
    retry = RetryPolicy(backoff_ms=100, max_backoff_ms=200, jitter=0.25)
    reckoned = {partial(wait_ms, retry, 1): 100, partial(longest_wait_ms, retry): 200}
    for function, longest in reckoned.items():
        waits = [function() for _ in range(1_000)]
        assert all(0.75 * longest < each <= longest for each in waits)
        assert max(waits) - min(waits) > 0.2 * longest


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attempts": 0}, "attempts is 0.*1 to 1_000"),
        ({"attempts": -1}, "attempts is -1"),
        ({"attempts": 2.0}, "attempts is 2.0"),
        ({"attempts": None, "bisect": True}, "attempts is None.*is ever halved.*leave bisect out"),
        ({"attempts": True}, "attempts is True"),
        ({"backoff_ms": -1}, "backoff_ms is -1.*from 0 up"),
        ({"backoff_ms": float("nan")}, "backoff_ms is nan"),
        ({"backoff_ms": "1"}, "backoff_ms is '1'"),
        ({"factor": 0.5}, "factor is 0.5.*from 1 up"),
        ({"factor": float("inf")}, "factor is inf"),
        ({"max_backoff_ms": -0.1}, "max_backoff_ms is -0.1"),
        ({"retry_on": ValueError}, "retry_on is <class 'ValueError'>.*tuple"),
        ({"retry_on": [ValueError]}, "retry_on is .*tuple of exception classes"),
        ({"retry_on": (ValueError, int)}, "retry_on is .*tuple of exception classes"),
        ({"retry_on": (ValueError(),)}, "retry_on is .*tuple of exception classes"),
    ],
    ids=repr,
)
def test_invalid_values_are_rejected(settings, message):
    with pytest.raises(ConfigError, match=message):
        RetryPolicy(**settings)


def test_a_type_has_its_own_policy(make_queue):
    patient, strict, other = Flaky(2), Flaky(2, KeyError), Flaky(1)
    errors = []
    settings = config(
        retry=RetryPolicy(attempts=2, **IMMEDIATELY),
        error_handler=lambda batch, error: errors.append(type(error)),
    )
    queue = make_queue(settings=settings)
    queue.add_handler(int, patient, retry=RetryPolicy(attempts=3, **IMMEDIATELY))
    only_values = RetryPolicy(attempts=3, retry_on=(ValueError,), **IMMEDIATELY)
    queue.add_handler(str, strict, retry=only_values)
    queue.add_handler(float, other)
    for item in (1, "a", 1.0):
        queue.produce(item)
    assert queue.flush(WAIT_S)
    assert (patient.tries, strict.tries, other.tries) == ([[1]] * 3, [["a"]], [[1.0]] * 2)
    assert errors == [KeyError]


def test_one_instance_serves_types_under_different_policies(make_queue):
    handler = Flaky(1)
    queue = make_queue(settings=config())
    queue.add_handler(int, handler, retry=RetryPolicy(**IMMEDIATELY))
    queue.add_handler(str, handler, retry=RetryPolicy(retry_on=(KeyError,), **IMMEDIATELY))
    queue.produce(1)
    queue.produce("a")
    assert queue.flush(WAIT_S)
    assert (queue.stats().consumed, queue.stats().failed) == (1, 1)
    queue.add_handler(str, handler, replace=True)
    queue.produce("b")
    assert queue.flush(WAIT_S)
    assert (queue.stats().consumed, queue.stats().failed) == (1, 2)


def test_an_invalid_policy_of_a_type_is_rejected(make_queue):
    with pytest.raises(ConfigError, match="retry is 3, an int; give a RetryPolicy"):
        make_queue(settings=config()).add_handler(int, print, retry=3)


def test_a_refused_registration_leaves_the_policy_of_the_type_alone(make_queue):
    handler = Flaky(2)
    queue = make_queue(settings=config())
    queue.add_handler(int, handler, retry=RetryPolicy(**IMMEDIATELY))
    only_keys = RetryPolicy(retry_on=(KeyError,), **IMMEDIATELY)
    with pytest.raises(ConfigError):
        queue.add_handler(
            int, handler, replace=True, retry=only_keys, max_batch_items=1, max_delay_ms=5
        )
    queue.produce(1)
    assert queue.flush(WAIT_S)
    assert (queue.stats().consumed, len(handler.tries)) == (1, 3)


def test_nothing_is_kept_of_the_policy_of_a_removed_type(make_queue):
    handler = Recorder()
    queue = make_queue(settings=config())

    def session():
        class Item: ...

        class Error(Exception): ...

        queue.add_handler(Item, handler, retry=RetryPolicy(retry_on=(Error,)))
        assert queue.remove_handler(Item, timeout=WAIT_S)
        return weakref.ref(Error)

    errors = [session() for _ in range(20)]
    gc.collect()
    assert not any(error() for error in errors)
