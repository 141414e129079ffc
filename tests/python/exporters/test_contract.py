"""An exporter says what became of each item, and the queue acts on it."""

import os
import pickle
import threading

import pytest

from batchqueue import BatchFailed, BatchQueue, ConfigError, RetryPolicy
from batchqueue.exporters import Exporter, ExportFailed, NotDelivered
from core_support.queues import config
from core_support.threads import in_background, join
from core_support.waits import WAIT_S, eventually
from exporters_support.queues import exporting, send

BUSY, BAD = ConnectionError("busy"), ValueError("bad")


class Scripted(Exporter):
    """Returns outcomes by item, one list for each call; then all are delivered."""

    def __init__(self, *calls):
        self.calls, self.seen, self.stored = list(calls), [], []

    def export(self, items):
        self.seen.append(list(items))
        outcomes = self.calls.pop(0) if self.calls else {}
        if isinstance(outcomes, Exception):
            raise outcomes
        self.stored += [item for item in items if item not in outcomes]
        return [outcomes.get(item) for item in items]


def test_items_are_retried_or_dead_as_their_outcome_says():
    exporter = Scripted({2: NotDelivered(BUSY), 3: NotDelivered(BAD, retry=False)})

    letters = send(int, exporter, [1, 2, 3, 4])

    assert exporter.stored == [1, 4, 2]
    assert exporter.seen == [[1, 2, 3, 4], [2]]
    assert [(letter.item, letter.error) for letter in letters] == [(3, BAD)]


def test_item_that_fails_for_good_is_a_dead_letter_without_another_attempt():
    exporter = Scripted({3: NotDelivered(BAD, retry=False)})

    letters = send(int, exporter, [3, 4], retry=RetryPolicy(attempts=None))

    assert [(letter.item, letter.error, letter.attempts) for letter in letters] == [(3, BAD, 1)]
    assert exporter.seen == [[3, 4]]


def test_dead_items_have_their_own_errors_when_the_attempts_are_used_up():
    worse = ValueError("worse")
    busy = {1: NotDelivered(BUSY)}
    exporter = Scripted({**busy, 2: NotDelivered(BAD, False), 3: NotDelivered(worse, False)}, busy)

    letters = send(int, exporter, [1, 2, 3, 4], retry=RetryPolicy(attempts=2, backoff_ms=1))

    assert {letter.item: letter.error for letter in letters} == {1: BUSY, 2: BAD, 3: worse}
    assert exporter.seen == [[1, 2, 3, 4], [1]]


def test_item_that_is_produced_again_after_its_dead_letter_is_exported():
    busy = {1: NotDelivered(BUSY)}
    exporter = Scripted({**busy, 2: NotDelivered(BAD, False)}, busy)
    retry = RetryPolicy(attempts=2, backoff_ms=1)
    together = {"max_batch_items": 2, "max_delay_ms": 60_000}
    with exporting(int, exporter, retry, **together) as (queue, letters):
        queue.produce_many([1, 2])
        eventually(lambda: len(letters) == 2)
        queue.produce_many([1, 2])
        queue.flush(WAIT_S)
    assert exporter.stored == [1, 2]


def test_exception_means_the_whole_batch():
    exporter = Scripted(BUSY, BUSY)

    letters = send(int, exporter, [1, 2, 3])

    assert not letters
    assert exporter.seen == [[1, 2, 3]] * 3
    assert exporter.stored == [1, 2, 3]


def test_exception_in_a_later_attempt_does_not_revive_the_dead():
    exporter = Scripted({1: NotDelivered(BUSY), 2: NotDelivered(BAD, retry=False)}, BUSY)

    letters = send(int, exporter, [1, 2, 3])

    assert exporter.seen == [[1, 2, 3], [1], [1]]
    assert [letter.error for letter in letters] == [BAD]


def test_policy_of_the_queue_decides_by_the_error_of_the_item():
    exporter = Scripted({1: NotDelivered(BUSY)}, {1: NotDelivered(BAD)})
    retry = RetryPolicy(attempts=None, backoff_ms=1, retry_on=(ConnectionError,))

    letters = send(int, exporter, [1, 2], retry=retry)

    assert [(letter.item, letter.error, letter.attempts) for letter in letters] == [(1, BAD, 2)]


def test_several_dead_items_of_random_batches_are_counted_once():
    class Third(Exporter):
        """Refuses each third item, and the others once."""

        def __init__(self):
            self.tried, self.stored = set(), []

        def export(self, items):
            return [self.outcome(item) for item in items]

        def outcome(self, item):
            if item % 3 == 0:
                assert item not in self.tried, "a dead item was exported again"
                self.tried.add(item)
                return NotDelivered(BAD, retry=False)
            if item not in self.tried and item % 7 == 1:
                self.tried.add(item)
                return NotDelivered(BUSY)
            self.stored.append(item)
            return None

    exporter, items = Third(), list(range(1_000, 3_000))

    letters = send(int, exporter, items, max_batch_items=37)

    assert sorted(exporter.stored) == [item for item in items if item % 3]
    assert [letter.item for letter in letters] == [item for item in items if item % 3 == 0]


def test_futures_of_submitted_items_have_their_outcome():
    with BatchQueue("results", config()) as queue:
        queue.add_handler(int, Scripted({2: NotDelivered(BAD, retry=False)}))
        futures = [queue.submit(item) for item in (1, 2)]
    assert futures[0].result(WAIT_S) is None
    assert isinstance(futures[1].exception(WAIT_S), ExportFailed)


@pytest.mark.parametrize("returned", [[None], 3, "ab", [1, 2], [None, BAD]])
def test_wrong_outcomes_are_refused_once_with_what_is_right(returned):
    class Wrong(Exporter):
        def export(self, items):
            return returned

    letters = send(int, Wrong(), [1, 2])

    assert [type(letter.error) for letter in letters] == [ConfigError] * 2
    assert "a list with None or a NotDelivered for each item" in str(letters[0].error)
    assert {letter.attempts for letter in letters} == {1}


def test_close_returns_the_items_of_a_call_that_does_not_end():
    entered, leave = threading.Event(), threading.Event()

    class Slow(Exporter):
        def export(self, items):
            entered.set()
            leave.wait(WAIT_S)

    exporter = Slow()
    assert exporter.close() == []
    thread, _ = in_background(lambda: exporter.consume([1, 2]))
    assert entered.wait(WAIT_S)
    assert exporter.close(0) == [1, 2]
    leave.set()
    join(thread)
    assert exporter.close() == []


def test_close_ends_a_pause():
    entered, ended = threading.Event(), []

    class Patient(Exporter):
        def export(self, items):
            entered.set()
            ended.append(self.pause(3_600))

    exporter = Patient()
    thread, _ = in_background(lambda: exporter.consume([1]))
    assert entered.wait(WAIT_S)
    assert exporter.close(WAIT_S) == []
    join(thread)
    assert ended == [False]


def test_shutdown_ends_a_pause():
    entered, ended = threading.Event(), []

    class Patient(Exporter):
        def export(self, items):
            entered.set()
            ended.append(self.pause(3_600))

    with BatchQueue("patient", config()) as queue:
        queue.add_handler(int, Patient())
        queue.produce(1)
        assert entered.wait(WAIT_S)
    assert ended == [False]
    assert queue.stats().consumed == 1


def test_child_of_a_fork_forgets_what_its_parent_opened():
    class Connected(Exporter):
        def __init__(self):
            self.forgotten = []

        def export(self, items):
            pass

        def forget(self):
            self.forgotten.append(os.getpid())

    exporter = Connected()
    exporter.consume([1])
    assert exporter.forgotten == []
    with exporter._exporter_state.lock:  # as if another thread were inside a call
        child = os.fork()
        if child == 0:
            exporter.consume([1])
            os._exit(7 if exporter.forgotten == [os.getpid()] else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7


def test_error_that_names_the_failed_items_can_be_pickled():
    error = pickle.loads(pickle.dumps(ExportFailed(["a"], [NotDelivered(ValueError("x"))])))
    assert error.items == ["a"]
    assert repr(error.failures[0].error) == "ValueError('x')"


def test_dead_letter_of_any_handler_has_the_error_that_names_it():
    class OwnErrors(BatchFailed):
        def error_of(self, item):
            return ValueError(item)

    letters = []

    def handler(batch):
        raise OwnErrors(batch)

    with BatchQueue("own", config()) as queue:
        queue.add_handler(int, handler, dead_letter=letters.extend)
        queue.produce_many([1, 2])
    assert [letter.error.args for letter in letters] == [(1,), (2,)]
