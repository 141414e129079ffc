"""Each record that is logged is delivered once, in the order of its thread, or counted."""

import gc
import logging
import threading
from collections import Counter

import pytest

from batchqueue import BatchQueue, BatchQueueConfig, ThreadPolicy
from batchqueue.logging import QueueHandler
from core_support.waits import WAIT_S, eventually

DROPPED = "dropped: the buffer of 'logging' was full"


def log_from_threads(log, threads, records):
    """Logs `records` numbered records from each of several threads, all started together."""
    barrier = threading.Barrier(threads)

    def run(thread):
        barrier.wait()
        for number in range(records):
            log.info("%d %d", thread, number)

    running = [threading.Thread(target=run, args=(each,)) for each in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def hold(log, target):
    """Logs a record and returns once the target is inside its call, so that the buffer is empty."""
    target.entered.clear()
    log.info("100 0")
    assert target.entered.wait(WAIT_S)


def by_thread(messages):
    """Returns the numbers that were delivered, by thread, and the reports of dropped records."""
    numbers, reports = {}, []
    for message in messages:
        if DROPPED in message:
            reports.append(int(message.split()[0].replace(",", "")))
            continue
        thread, number = map(int, message.split())
        numbers.setdefault(thread, []).append(number)
    return numbers, reports


def test_twenty_threads_lose_nothing_while_there_is_room(add, target):
    log, handler = add(target, buffer_size=20_000)
    log_from_threads(log, 20, 1_000)
    assert handler.flush(WAIT_S)
    numbers, reports = by_thread(target.messages)
    assert numbers == {thread: list(range(1_000)) for thread in range(20)}
    assert not reports
    stats = handler.stats()
    assert (stats.accepted, stats.delivered, stats.dropped) == (20_000, 20_000, 0)
    assert max(target.batches) <= 1_000


def test_what_does_not_fit_is_dropped_newest_first_and_counted(add, target):
    log, handler = add(target, buffer_size=500, max_batch_items=100)
    with target.held():
        hold(log, target)
        log_from_threads(log, 20, 100)
        assert handler.stats().dropped == 1_500
    assert handler.flush(WAIT_S)
    numbers, reports = by_thread(target.messages)
    assert sum(map(len, numbers.values())) == 501
    for each in numbers.values():
        assert each == sorted(set(each))
    log.info("0 1000")
    assert handler.flush(WAIT_S)
    reports = by_thread(target.messages)[1]
    assert reports == [1_500]
    assert handler.stats().delivered == 503


def test_threads_that_outrun_the_target_account_for_every_record(add, target):
    log, handler = add(target, buffer_size=50, max_batch_items=10, max_delay_ms=0)
    log_from_threads(log, 8, 500)
    handler.close()
    numbers, reports = by_thread(target.messages)
    stats = handler.stats()
    assert sum(map(len, numbers.values())) + stats.dropped == 4_000
    assert stats.accepted == stats.delivered == len(target.items)
    assert sum(reports) <= stats.dropped
    for each in numbers.values():
        assert each == sorted(set(each))


def test_a_report_of_dropped_records_comes_before_the_next_record_and_not_too_often(add, target):
    log, handler = add(target, buffer_size=2)

    def overflow():
        with target.held():
            hold(log, target)
            for number in range(5):
                log.info("kept %d", number)

    overflow()
    assert handler.flush(WAIT_S)
    log.info("after")
    assert handler.flush(WAIT_S)
    assert target.messages == ["100 0", "kept 0", "kept 1", f"3 records {DROPPED}", "after"]
    report = target.items[3]
    assert (report.name, report.levelname) == ("batchqueue.logging", "WARNING")
    overflow()
    assert handler.flush(WAIT_S)
    log.info("later")
    assert handler.flush(WAIT_S)
    assert target.messages[5:] == ["100 0", "kept 0", "kept 1", "later"]
    handler.close()
    assert target.messages[9:] == [f"3 records {DROPPED}"]


def test_a_caller_waits_as_long_as_it_is_asked_to(add, target):
    log, handler = add(target, buffer_size=1, block_s=WAIT_S)
    done = threading.Event()
    with target.held():
        hold(log, target)
        log.info("0 0")

        def run():
            log.info("0 1")
            done.set()

        thread = threading.Thread(target=run)
        thread.start()
        eventually(lambda: handler._queue.stats().attempts == 3, "the call")
        assert not done.is_set()
    thread.join()
    assert handler.flush(WAIT_S)
    assert by_thread(target.messages) == ({0: [0, 1], 100: [0]}, [])


def test_a_caller_that_has_waited_long_enough_drops_its_record(add, target):
    log, handler = add(target, buffer_size=2, block_s=0.001)
    with target.held():
        hold(log, target)
        for number in range(3):
            log.info("0 %d", number)
        assert handler.stats().dropped == 1
    assert handler.flush(WAIT_S)
    log.info("0 3")  # there is room for it behind the report
    assert handler.flush(WAIT_S)
    assert by_thread(target.messages) == ({0: [0, 1, 3], 100: [0]}, [1])


def test_a_batch_is_tried_again_and_keeps_its_order(add, target):
    target.errors = [OSError("away"), OSError("away")]
    log, handler = add(target, retry={"attempts": 3, "backoff_ms": 0})
    for number in range(10):
        log.info("0 %d", number)
    assert handler.flush(WAIT_S)
    assert by_thread(target.messages) == ({0: list(range(10))}, [])


def test_records_that_fail_for_good_are_counted_and_reported_on_stderr(add, target, capsys):
    target.errors = [OSError("away"), OSError("away again")]
    log, handler = add(target)
    for number in range(3):
        log.info("0 %d", number)
        assert handler.flush(WAIT_S)
    stats = handler.stats()
    assert (stats.failed, stats.delivered) == (2, 1)
    err = capsys.readouterr().err
    assert "1 record could not be delivered" in err
    assert "OSError: away\n" in err
    assert "away again" not in err  # one line a minute


def test_a_fallback_gets_the_records_that_fail_for_good(add, target):
    kept = []
    target.errors = [OSError("away")]
    log, handler = add(target, fallback=kept.extend, items="dicts")
    log.info("0 0")
    assert handler.flush(WAIT_S)
    log.info("0 1")
    assert handler.flush(WAIT_S)
    assert [each["message"] for each in kept] == ["0 0"]
    assert [each["message"] for each in target.items] == ["0 1"]
    stats = handler.stats()
    assert (stats.accepted, stats.delivered, stats.kept, stats.failed) == (2, 1, 1, 0)


def test_a_program_that_wants_no_errors_of_logging_gets_none(add, target, capsys, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    target.errors = [OSError("away")]
    log, handler = add(target, buffer_size=1)
    log.info("0 0")
    assert handler.flush(WAIT_S)
    log.info("%d", "not a number")
    with target.held():
        hold(log, target)
        log.info("0 1")
        log.info("0 2")
    handler.close()
    stats = handler.stats()
    assert (stats.failed, stats.dropped) == (1, 2)
    assert capsys.readouterr().err == ""


def test_a_message_that_cannot_be_rendered_is_reported_as_by_other_handlers(add, target, capsys):
    log, handler = add(target)
    log.info("%d", "not a number")
    log.info("0 0")
    assert handler.flush(WAIT_S)
    err = capsys.readouterr().err
    assert err.count("--- Logging error ---") == 1
    assert "not a number" in err
    handler.close()
    assert target.messages == ["0 0"]
    assert handler.stats().dropped == 1
    assert "dropped" not in capsys.readouterr().err  # it is reported already


# Lines that come from shipping other lines.


def test_what_a_target_logs_does_not_come_back(add, target):
    library = logging.getLogger("library")
    library.setLevel(logging.DEBUG)

    class Chatty:
        def on_open(self):
            library.debug("opened")

        def consume(self, batch):
            library.debug("sending %d", len(batch))
            target.consume(batch)

        def on_close(self):
            library.debug("closed")

    root = logging.getLogger()
    _, handler = add(Chatty(), logger=root, level="DEBUG")
    library.info("of the program")
    assert handler.flush(WAIT_S)
    assert target.messages == ["of the program"]
    root.removeHandler(handler)
    root.addHandler(handler)
    handler.close()
    assert target.messages == ["of the program"]
    assert handler.stats().excluded == 3


def test_two_handlers_do_not_ship_what_the_target_of_the_other_logs(add):
    library = logging.getLogger("library")
    library.setLevel(logging.DEBUG)
    root, shipped = logging.getLogger(), []

    def consume(batch):
        library.debug("sending")
        shipped.extend(record.message for record in batch)

    handlers = [add(consume, logger=root)[1] for _ in range(2)]
    library.info("of the program")
    for _ in range(3):
        for handler in handlers:
            assert handler.flush(WAIT_S)
    assert shipped == ["of the program"] * 2


def test_a_line_that_a_target_hands_to_another_thread_does_not_come_back(add, target):
    """As a `QueueListener` does: the record says which thread logged it."""

    def consume(batch):
        record = log.makeRecord("library", logging.INFO, "", 0, "sending", (), None)
        thread = threading.Thread(target=handler.handle, args=(record,))
        thread.start()
        thread.join()
        target.consume(batch)

    log, handler = add(consume)
    log.info("of the program")
    assert handler.flush(WAIT_S)
    assert handler.flush(WAIT_S)
    assert target.messages == ["of the program"]
    assert handler.stats().excluded == 1


def test_the_lines_of_the_queue_itself_are_left_out_and_those_of_others_are_not(add, target):
    root = logging.getLogger()
    _, handler = add(target, logger=root, buffer_size=3)
    log = logging.getLogger("shop")
    log.setLevel(logging.INFO)
    with target.held():
        hold(log, target)
        for number in range(4):
            log.warning("0 %d", number)  # the queue logs the first record that it refuses
    assert handler.flush(WAIT_S)
    assert handler.stats().excluded >= 1
    with BatchQueue("orders", BatchQueueConfig(threads=ThreadPolicy.fixed(1))) as queue:
        queue.add_handler(int, lambda batch: 1 / 0)
        queue.produce(1)
    eventually(lambda: any("ZeroDivisionError" in each for each in target.messages), "the line")
    assert not any("queue logging:" in each for each in target.messages)


def test_what_a_handler_of_another_queue_logs_is_shipped(add, target):
    log, handler = add(target)
    with BatchQueue("orders", BatchQueueConfig(threads=ThreadPolicy.fixed(1))) as queue:
        queue.add_handler(int, lambda batch: log.info("0 %d", batch[0]))
        queue.produce(7)
    assert handler.flush(WAIT_S)
    assert target.messages == ["0 7"]


def test_records_without_thread_and_process_are_distinguished_too(add, target, monkeypatch):
    monkeypatch.setattr(logging, "logThreads", False)
    monkeypatch.setattr(logging, "logProcesses", False)
    log, handler = add(lambda batch: (log.info("sending"), target.consume(batch)))
    log.info("0 0")
    assert handler.flush(WAIT_S)
    assert handler.flush(WAIT_S)
    assert target.messages == ["0 0"]


def test_a_formatter_that_logs_does_not_loop(add, target):
    class Formatter(logging.Formatter):
        def format(self, record):
            log.info("formatting")
            return super().format(record)

    log, handler = add(target, items="text")
    handler.setFormatter(Formatter())
    log.info("0 0")
    assert handler.flush(WAIT_S)
    assert handler.flush(WAIT_S)
    assert target.items == ["0 0"]


# Calls inside calls.


def test_an_argument_that_logs_while_it_is_rendered_is_shipped_after_what_it_logs(add, target):
    class Chatty:
        def __str__(self):
            log.info("rendering")
            return "chatty"

    log, handler = add(target)
    log.info("%s", Chatty())
    assert handler.flush(WAIT_S)
    assert target.messages == ["rendering", "chatty"]


def test_an_argument_that_logs_itself_ends(add, target, capsys):
    class Endless:
        depth = 0

        def __str__(self):
            Endless.depth += 1
            log.info("%s", self)
            return "endless"

    log, handler = add(target)
    log.info("%s", Endless())
    assert handler.flush(WAIT_S)
    handler.close()
    stats = handler.stats()
    reports = [message for message in target.messages if "dropped" in message]
    assert stats.dropped >= 1
    assert stats.delivered == len(target.items)
    # The last call may not have come as far as the handler.
    logged = stats.delivered - len(reports) + stats.dropped
    assert Endless.depth <= logged <= Endless.depth + 1
    assert set(target.messages) == {"endless", *reports}
    assert "--- Logging error ---" not in capsys.readouterr().err


def test_an_object_that_logs_when_it_is_collected_may_be_collected_anywhere(add, target):
    log, handler = add(target, buffer_size=100_000)

    class Garbage:
        def __init__(self):
            self.itself = self

        def __del__(self):
            log.info("1 0")

    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for number in range(200):
            Garbage()
            log.info("0 %d", number)
    finally:
        gc.set_threshold(*thresholds)
        gc.collect()
    assert handler.flush(WAIT_S)
    numbers, _ = by_thread(target.messages)
    assert numbers[0] == list(range(200))
    # Those that a target's thread collects count as its own.
    assert len(numbers[1]) + handler.stats().excluded == 200


def test_an_exception_in_the_same_batch_of_many_threads_keeps_each_record_once(add, target):
    target.errors = [OSError("away")] * 3
    log, handler = add(
        target, retry={"attempts": None, "backoff_ms": 0}, max_batch_items=7, max_delay_ms=0
    )
    log_from_threads(log, 5, 200)
    assert handler.flush(WAIT_S)
    assert Counter(target.messages) == Counter(
        f"{thread} {number}" for thread in range(5) for number in range(200)
    )
    assert by_thread(target.messages)[0] == {thread: list(range(200)) for thread in range(5)}


def test_a_handler_that_is_dropped_delivers_and_ends(target):
    handler = QueueHandler(target)
    handler.handle(logging.makeLogRecord({"msg": "0 0"}))
    assert handler.flush(WAIT_S)
    assert any("logging" in thread.name for thread in threading.enumerate())
    handler.handle(logging.makeLogRecord({"msg": "0 1"}))
    del handler
    eventually(lambda: target.messages == ["0 0", "0 1"], "the delivery")
    eventually(
        lambda: not any("logging" in thread.name for thread in threading.enumerate()), "the end"
    )


@pytest.mark.parametrize("hold", [False, True])
def test_flush_says_whether_all_is_delivered(add, target, hold):
    log, handler = add(target)
    assert handler.flush()
    with target.held():
        if hold:
            log.info("0 0")
        assert handler.flush(0.001) is not hold
    assert handler.flush(WAIT_S)
