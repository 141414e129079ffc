"""Closing, reopening, `logging.shutdown`, forks, signals, and the exit of the interpreter."""

import logging
import logging.config
import threading

import pytest

from core_support.scripts import FORKS, run_script
from core_support.waits import WAIT_S, eventually

HEADER = """
import atexit, ctypes, gc, logging, logging.config, os, signal, sys, threading, time
import faulthandler
faulthandler.enable()
from batchqueue import BatchQueueManager
from batchqueue.logging import QueueHandler

def eventually(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def ship(batch):
    say(*(record.message for record in batch))

def add(target=ship, **options):
    handler = QueueHandler(target, **options)
    log.addHandler(handler)
    return handler

log = logging.getLogger("shop")
log.setLevel(logging.DEBUG)
log.propagate = False
"""


def script(code):
    return run_script(code, header=HEADER)


def drain_threads():
    return [each for each in threading.enumerate() if each.name.startswith("once")]


def test_close_delivers_what_was_accepted_and_ends_the_thread(add, target):
    log, handler = add(target, name="once", max_delay_ms=60_000)
    log.info("first")
    handler.close()
    assert target.messages == ["first"]
    eventually(lambda: not drain_threads(), "the end")


def test_a_record_after_close_starts_again_and_keeps_the_counts(add, target, caplog):
    log, handler = add(target)
    for number in range(3):
        log.info("%d", number)
        handler.close()
    assert target.messages == ["0", "1", "2"]
    stats = handler.stats()
    assert (stats.accepted, stats.delivered, stats.waiting) == (3, 3, 0)
    assert sum(stats.to_dict().values()) == 6
    assert "refused" not in caplog.text


def test_records_during_close_are_dropped_and_counted(add, target):
    log, handler = add(target)
    with target.held():
        log.info("accepted")
        closing = threading.Thread(target=handler.close)
        closing.start()
        eventually(lambda: not handler._queue.running, "the closing")
        log.info("refused")
    closing.join()
    log.info("later")
    assert handler.flush(WAIT_S)
    assert target.messages == ["accepted", "later"]
    assert handler.stats().dropped == 1


def test_threads_that_log_while_others_close_account_for_every_record(add, target):
    log, handler = add(target, buffer_size=20, max_delay_ms=0)
    done = threading.Event()

    def close():
        while not done.is_set():
            handler.close()

    closing = [threading.Thread(target=close) for _ in range(2)]
    logging_ = [
        threading.Thread(target=lambda: [log.info("%d", each) for each in range(300)])
        for _ in range(4)
    ]
    for thread in closing + logging_:
        thread.start()
    for thread in logging_:
        thread.join()
    done.set()
    for thread in closing:
        thread.join()
    assert handler.flush(WAIT_S)  # a queue that started after the last close may be full
    log.info("last")
    handler.close()
    stats = handler.stats()
    reports = sum("dropped: the buffer" in message for message in target.messages)
    assert target.messages[-1] == "last"
    assert stats.accepted == stats.delivered == len(target.items)
    assert stats.accepted - reports + stats.dropped == 1_201


def test_close_gives_up_a_target_that_hangs(add, target):
    log, handler = add(target, shutdown_timeout=0.01)
    with target.held():
        log.info("held")
        assert not handler.flush()
        assert target.entered.wait(WAIT_S)
        handler.close()
        stats = handler.stats()
    assert (stats.accepted, stats.abandoned, stats.delivered) == (1, 1, 0)


def test_logging_shutdown_delivers_and_a_later_record_is_delivered_too(add, target):
    log, handler = add(target, max_delay_ms=60_000)
    log.info("first")
    logging.shutdown([lambda: handler])
    assert target.messages == ["first"]
    log.info("second")
    logging.shutdown([lambda: handler])
    assert target.messages == ["first", "second"]


def test_a_call_of_dict_config_does_not_wait_for_a_target_that_needs_the_lock_of_logging():
    """Libraries such as urllib3 take that lock whenever they ask for a logger or its level."""
    code, out, err = script(
        """
        entered, go = threading.Event(), threading.Event()

        class Target:
            def consume(self, batch):
                entered.set()
                go.wait()
                logging.getLogger("library.new").debug("sending")
                ship(batch)

        handler = add(Target(), shutdown_timeout=600)
        log.info("first")
        assert not handler.flush(0.001)
        assert entered.wait(30)
        with logging._lock:
            # What the configuration does; the target continues only once it has returned.
            handler.flush()
            handler.close()
        logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})
        go.set()
        assert handler.flush(30)
        log.info("second")
        assert handler.flush(30)
        say(handler.stats().accepted)
        """
    )
    assert (code, out, err) == (0, ["first", "second", "2"], "")


def test_a_flush_or_close_inside_the_target_does_not_wait_for_itself(add, target):
    results = []

    def consume(batch):
        results.append(handler.flush(WAIT_S))
        handler.close()
        target.consume(batch)

    log, handler = add(consume)
    log.info("first")
    assert handler.flush(WAIT_S)
    assert (results, target.messages) == ([False], ["first"])
    assert handler.stats().delivered == 1


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("drops", [False, True])
def test_a_call_that_is_late_for_a_queue_that_ended_costs_no_record(add, target, drops, restarts):
    """As when a thread has read which queue is next, and another one closes the handler."""
    log, handler = add(target, buffer_size=2)
    with target.held():
        log.info("first")
        assert target.entered.wait(WAIT_S)
        for number in range(4 if drops else 1):
            log.info("%d", number)
        late = handler._produce
    handler.close()
    before = handler.stats().dropped
    if restarts and drops:
        log.info("again")
        assert handler.flush(WAIT_S)
    handler._produce = late
    target.items.clear()
    for word in ["next", "last"]:
        log.info(word)
    assert handler.flush(WAIT_S)
    assert target.messages == ["next", "last"]
    assert handler.stats().dropped == before == (2 if drops else 0)


def test_the_exit_delivers_what_was_accepted():
    code, out, err = script(
        """
        add(max_delay_ms=60_000)
        log.info("first")
        """
    )
    assert (code, out, err) == (0, ["first"], "")


def test_the_exit_delivers_what_exit_functions_log_before_and_after_the_end_of_the_queue():
    code, out, err = script(
        """
        atexit.register(log.info, "registered before the queue was made")
        add(max_delay_ms=60_000)
        log.info("first")
        atexit.register(log.info, "registered after")
        """
    )
    assert (code, err) == (0, "")
    assert out == ["first registered after", "registered before the queue was made"]


def test_records_after_the_package_has_ended_are_reported():
    code, out, err = run_script(
        """
        import atexit, logging, sys
        log = logging.getLogger("shop")
        atexit.register(log.error, "too late")
        from batchqueue.logging import QueueHandler
        handler = QueueHandler(lambda batch: print([each.message for each in batch], flush=True))
        log.addHandler(handler)
        log.error("first")
        atexit.register(log.error, "in time")
        """,
        header="",
    )
    assert code == 0
    assert out == ["['first', 'in time']"]
    assert err == "batchqueue.logging: 1 record of 'logging' dropped\n"


def test_a_target_that_hangs_does_not_hold_up_the_exit():
    code, out, err = script(
        """
        entered = threading.Event()

        def hang(batch):
            entered.set()
            threading.Event().wait()

        handler = add(hang, shutdown_timeout=0.1)
        log.info("first")
        assert entered.wait(30)
        atexit.register(lambda: say(handler.stats().accepted))
        raise SystemExit(3)
        """
    )
    assert (code, out) == (3, ["1"]), err


def test_an_exception_that_ends_the_program_is_logged_last():
    code, out, err = script(
        """
        add(max_delay_ms=60_000)
        sys.excepthook = lambda *info: log.critical("ended", exc_info=info)
        raise ValueError("bad")
        """
    )
    assert (code, out, err) == (1, ["ended"], "")


def test_objects_that_log_while_the_interpreter_ends_do_not_disturb_it():
    code, out, err = script(
        """
        class Late:
            def __init__(self):
                self.log = log

            def __del__(self):
                self.log.info("late")

        add()
        sys.modules["late"] = Late()
        kept = Late()
        log.info("first")
        """
    )
    assert (code, out[0]) == (0, "first")
    assert "Traceback" not in err


def test_threads_that_log_while_the_interpreter_ends_do_not_disturb_it():
    code, _, err = script(
        """
        add(lambda batch: None)

        def run():
            while True:
                log.info("on")

        for _ in range(4):
            threading.Thread(target=run, daemon=True).start()
        log.info("first")
        """
    )
    assert code == 0
    assert "Traceback" not in err


@pytest.mark.parametrize("fork", ["python", "c"])
def test_a_forked_child_ships_its_own_records_only(fork):
    code, out, err = script(
        FORKS[fork]
        + f"""
handler = add(max_delay_ms=60_000)
log.info("of the parent")
child = {"os.fork" if fork == "python" else "fork_in_c"}()
if child == 0:
    log.info("of the child")
    assert handler.stats().accepted == 1
    handler.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
handler.close()
say(handler.stats().accepted, handler.stats().delivered)
"""
    )
    assert (code, err) == (0, "")
    assert out == ["of the child", "of the parent", "1 1"]


def test_children_forked_while_threads_log_and_the_target_hangs_work():
    code, out, err = script(
        """
        parent, entered = os.getpid(), threading.Event()

        def target(batch):
            if os.getpid() == parent:
                entered.set()
                time.sleep(0.01)
            else:
                ship(batch)

        handler = add(target, buffer_size=100)
        stop = threading.Event()

        def run():
            while not stop.is_set():
                log.info("of the parent")

        threads = [threading.Thread(target=run, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert entered.wait(30)
        for number in range(10):
            child = os.fork()
            if child == 0:
                log.info("child %d", number)
                ok = handler.stats().accepted == 1 and handler.stats().dropped == 0
                handler.close()
                os._exit(0 if ok else 1)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        for thread in threads:
            thread.join()
        """
    )
    assert code == 0, err
    assert out == [f"child {number}" for number in range(10)]


def test_a_child_of_multiprocessing_delivers_when_it_ends():
    code, out, err = script(
        """
        import multiprocessing

        handler = add(max_delay_ms=60_000)
        log.info("of the parent")
        process = multiprocessing.get_context("fork").Process(target=log.info, args=("child",))
        process.start()
        process.join()
        say(process.exitcode)
        """
    )
    assert (code, out, err) == (0, ["child", "0", "of the parent"], "")


def test_a_child_that_was_forked_inside_a_target_ships():
    code, out, err = script(
        """
        parent = os.getpid()

        def target(batch):
            if os.getpid() != parent:
                return ship(batch)
            child = os.fork()
            if child == 0:
                log.info("of the child")
                os._exit(0 if handler.flush(30) else 1)
            say(os.waitpid(child, 0)[1])

        handler = add(target)
        log.info("of the parent")
        handler.close()
        """
    )
    assert (code, out, err) == (0, ["of the child", "0"], "")


def test_signal_handlers_may_log_wherever_they_interrupt_the_program():
    code, out, err = script(
        """
        shipped = []
        handler = add(shipped.extend, buffer_size=1_000_000)
        signals = 0

        def note(number, frame):
            global signals
            signals += 1
            log.info("signal %d", signals)

        signal.signal(signal.SIGALRM, note)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        plain = 0
        while signals < 200:
            log.info("plain %d", plain)
            plain += 1
            if plain % 100 == 0:
                handler.close()
        signal.setitimer(signal.ITIMER_REAL, 0)
        handler.close()
        messages = [record.message for record in shipped]
        stats = handler.stats()
        assert stats.accepted == stats.delivered == len(messages), stats
        assert stats.accepted + stats.dropped == plain + signals, stats
        for kind in ("plain", "signal"):
            numbers = [int(each.split()[1]) for each in messages if each.startswith(kind)]
            assert len(numbers) == len(set(numbers)), kind
            if kind == "plain":  # a signal handler may interrupt another one
                assert numbers == sorted(numbers)
        """
    )
    assert (code, out) == (0, []), err


def test_a_signal_handler_may_log_while_its_thread_waits_for_room():
    code, out, err = script(
        """
        go, entered = threading.Event(), threading.Event()

        def target(batch):
            entered.set()
            go.wait()
            ship(batch)

        def note(number, frame):
            go.set()
            log.info("signal")

        handler = add(target, buffer_size=1, block_s=30)
        log.info("first")
        assert entered.wait(30)
        log.info("second")
        signal.signal(signal.SIGALRM, note)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        log.info("third")
        handler.close()
        """
    )
    assert (code, err) == (0, "")
    assert sorted(" ".join(out).split()) == ["first", "second", "signal", "third"]


def test_sigterm_with_a_handler_of_the_program_delivers():
    code, out, err = script(
        """
        add(max_delay_ms=60_000)
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
        log.info("first")
        os.kill(os.getpid(), signal.SIGTERM)
        """
    )
    assert (code, out, err) == (0, ["first"], "")
