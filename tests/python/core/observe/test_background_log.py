"""Lines that another thread writes to the log, so that the log holds up nothing else."""

import logging
import os
import threading

import pytest

from batchqueue.base.background_log import BackgroundLog, flush_log, log_lines_dropped, log_stuck_s
from core_support.held_log import calling_log, held_log
from core_support.scripts import run_script
from core_support.waits import WAIT_S, eventually

LOG = BackgroundLog("batchqueue.test")


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.DEBUG, logger="batchqueue")
    return caplog


def test_a_line_is_that_of_the_place_and_thread_that_left_it(lines):
    def leave():
        try:
            raise ValueError("of the program")
        except ValueError:
            LOG.exception("%s failed", "it")

    thread = threading.Thread(target=leave, name="the one that left it")
    thread.start()
    thread.join()
    assert flush_log(WAIT_S)
    [record] = lines.records
    assert record.getMessage() == "it failed"
    assert (record.name, record.levelname) == ("batchqueue.test", "ERROR")
    assert (record.threadName, record.thread) == (thread.name, thread.ident)
    assert (os.path.basename(record.pathname), record.funcName) == (
        "test_background_log.py",
        "leave",
    )
    assert "ValueError: of the program" in lines.text


def test_levels_and_order_are_kept(lines):
    lines.set_level(logging.INFO, logger="batchqueue")
    LOG.debug("left out")
    LOG.info("first")
    LOG.log(logging.CRITICAL, "second")
    LOG.error("third")
    assert flush_log(WAIT_S)
    assert [(each.levelname, each.getMessage()) for each in lines.records] == [
        ("INFO", "first"),
        ("CRITICAL", "second"),
        ("ERROR", "third"),
    ]


def test_a_log_that_hangs_is_shown_and_holds_up_nothing():
    assert flush_log(WAIT_S)
    assert log_stuck_s() == 0.0
    with held_log("held") as handler:
        LOG.warning("held")
        assert handler.entered.wait(WAIT_S)
        eventually(lambda: log_stuck_s() > 0.05, "the time grows")
        LOG.warning("behind it")
        assert not flush_log(0)
    assert log_stuck_s() == 0.0


def test_lines_beyond_the_bound_are_counted_and_not_kept(lines):
    before = log_lines_dropped()
    with held_log("held") as handler:
        LOG.warning("held")
        assert handler.entered.wait(WAIT_S)
        for number in range(1_500):
            LOG.warning("line %d", number)
        assert log_lines_dropped() - before == 500
        assert not flush_log(WAIT_S)  # it does not wait for what has no place
    eventually(lambda: "500 lines dropped while the log was held up" in lines.text, "the count")
    assert "line 999" in lines.text
    assert "line 1000" not in lines.text


def test_lines_after_a_handler_that_raises_are_written(lines, capsys):
    def fail(line):
        raise SystemExit("of the program's handler")

    with calling_log(fail, "bad"):
        LOG.warning("bad")
        LOG.warning("good")
        assert flush_log(WAIT_S)
    assert "good" in lines.messages
    assert "of the program's handler" in capsys.readouterr().err


def test_a_factory_of_records_that_raises_does_not_disturb_the_caller(lines, capsys):
    factory = logging.getLogRecordFactory()

    def fail(*fields, **others):
        raise KeyError("of the program's factory")

    logging.setLogRecordFactory(fail)
    try:
        LOG.warning("bad")
    finally:
        logging.setLogRecordFactory(factory)
    LOG.warning("good")
    assert flush_log(WAIT_S)
    assert "good" in lines.messages
    assert "of the program's factory" in capsys.readouterr().err


def test_a_handler_that_leaves_a_line_or_waits_for_the_log_does_not_hang(lines):
    waited = []

    def answer(line):
        LOG.info("an answer")
        waited.append(flush_log(WAIT_S))

    with calling_log(answer, "a question"):
        LOG.warning("a question")
        eventually(lambda: "an answer" in lines.messages, "the answer")
    assert waited == [False]


def test_the_child_of_a_fork_writes_while_the_log_of_its_parent_hangs():
    code, out, err = run_script(
        """
        import logging
        from batchqueue.base.background_log import BackgroundLog, flush_log, log_stuck_s

        parent, entered, go = os.getpid(), threading.Event(), threading.Event()

        class Handler(logging.Handler):
            def createLock(self):
                self.lock = None  # a fork would take it along

            def emit(self, record):
                if os.getpid() == parent:
                    entered.set()
                    go.wait()
                say(record.getMessage())

        logging.getLogger("batchqueue").addHandler(Handler())
        log = BackgroundLog("batchqueue")
        log.warning("of the parent")
        assert entered.wait(30)
        child = os.fork()
        if child == 0:
            assert log_stuck_s() == 0.0
            log.warning("of the child")
            os._exit(0 if flush_log(30) else 1)
        assert os.waitpid(child, 0)[1] == 0
        go.set()
        """
    )
    assert (code, out) == (0, ["of the child", "of the parent"]), err


def test_lines_are_written_at_the_end_of_the_interpreter_and_a_hung_log_does_not_keep_it():
    code, out, err = run_script(
        """
        import logging
        from batchqueue.base.background_log import BackgroundLog

        class Handler(logging.Handler):
            def createLock(self):
                self.lock = None  # `logging.shutdown` waits for it without a limit

            def emit(self, record):
                say(record.getMessage())
                if record.getMessage() == "the last":
                    threading.Event().wait()

        logging.getLogger("batchqueue").addHandler(Handler())
        log = BackgroundLog("batchqueue")
        for number in range(100):
            log.warning("%d", number)
        log.warning("the last")
        """
    )
    assert (code, out) == (0, [*map(str, range(100)), "the last"]), err
