"""Signals, forks and the end of the interpreter."""

import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from batchqueue import QueueForkedError
from batchqueue.base.background_log import flush_log
from batchqueue.base.signals import Flag, signals
from batchqueue.groups import MemoryStreams
from core_support.waits import HANG_S, WAIT_S
from groups_support.workers import Collected, owns, running, worker_of

PROGRAM = """
import logging, sys, threading, time
from batchqueue.groups import MemoryStreams, Worker

logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
streams = MemoryStreams("orders", partitions=2)
with streams.producer() as producer:
    producer.send(b"x", partition=0)
worker = Worker("g", streams, grace={grace})
go, entered = threading.Event(), threading.Event()

@worker.handler
def handler(batch):
    entered.set()
    print("inside", flush=True)
    {wait}
    print("outside", flush=True)

def committed():
    return streams.script(0).state.fences["g"].done

{body}
"""


@pytest.fixture
def program():
    started = []

    def start(body, *, wait="time.sleep(0.5)", grace=30):
        source = PROGRAM.format(body=textwrap.dedent(body), wait=wait, grace=grace)
        process = subprocess.Popen(
            [sys.executable, "-c", source],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_handler_finish_and_commits(program, number):
    process = program("summary = worker.run(); print(summary.handled, committed())")
    assert process.stdout.readline() == "inside\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=HANG_S)
    assert out == "outside\n1 1\n"
    assert f"{number.name}: leaving the group" in err
    assert process.returncode == 0


def test_a_second_signal_gives_up_what_is_in_hand(program):
    process = program(
        "summary = worker.run(); print(summary.unfinished, committed()); go.set()",
        wait="go.wait()",
    )
    assert process.stdout.readline() == "inside\n"
    process.send_signal(signal.SIGTERM)
    assert "SIGTERM: leaving the group" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=HANG_S)
    assert out.startswith("{0: 1} 0\n")
    assert process.returncode == 0


def test_second_signal_counts_although_the_first_is_being_logged(caplog):
    stop, give_up = Flag(), Flag()

    class Again(logging.Handler):
        def emit(self, record):
            if "leaving the group" in record.getMessage() and not give_up.is_set:
                signal.raise_signal(signal.SIGTERM)

    logger, again = logging.getLogger("batchqueue"), Again()
    caplog.set_level(logging.INFO, "batchqueue")
    logger.addHandler(again)
    try:
        with signals(stop, give_up, "leaving the group"):
            signal.raise_signal(signal.SIGTERM)
            assert stop.is_set
            assert flush_log(WAIT_S)
            assert give_up.is_set
    finally:
        logger.removeHandler(again)


def test_the_exit_of_the_interpreter_leaves_the_group(program):
    process = program("worker.start()\nentered.wait()")
    out, err = process.communicate(timeout=HANG_S)
    assert out == "inside\noutside\n"
    assert process.returncode == 0
    assert "Traceback" not in err


def test_a_handler_that_hangs_does_not_keep_the_interpreter_for_longer_than_its_grace(program):
    process = program(
        """
        worker.start()
        entered.wait()
        """,
        wait="go.wait()",
        grace=0.2,
    )
    process.communicate(timeout=HANG_S)
    assert process.returncode == 0


@pytest.mark.parametrize("block", [False, True], ids=["at the exit", "in a block"])
def test_ctrl_c_while_a_worker_leaves_gives_up_what_is_in_hand(program, block):
    process = program(
        f"""
        import atexit

        @atexit.register
        def last():
            print("last", committed(), flush=True)

        def watch():
            while not worker._member.control.is_leaving:
                time.sleep(0.01)
            print("leaves", flush=True)

        worker.start()
        entered.wait()
        threading.Thread(target=watch, daemon=True).start()
        if {block}:
            with worker:
                pass
        """,
        wait="go.wait()",
        grace=1000,
    )
    assert {process.stdout.readline(), process.stdout.readline()} == {"inside\n", "leaves\n"}
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == (-signal.SIGINT if block else 0), err
    assert out.split()[-2:] == ["last", "0"]
    assert "records in hand were given up, by partition: {0: 1}" in err
    assert "KeyboardInterrupt" in err


def test_what_was_opened_before_a_worker_is_closed_when_it_has_left(program):
    process = program(
        """
        import atexit
        @atexit.register
        def close():
            print("closed after", committed(), flush=True)
        worker.start()
        entered.wait()
        """,
    )
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    assert out == "inside\noutside\nclosed after 1\n"


def test_signal_handlers_are_those_of_before_when_a_run_is_over():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    worker_of(MemoryStreams("orders"), Collected()).run(max_seconds=0.05)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_run_outside_of_the_main_thread_leaves_signals_alone():
    before = signal.getsignal(signal.SIGTERM)
    worker = worker_of(MemoryStreams("orders"), Collected())
    done = []
    thread = threading.Thread(target=lambda: done.append(worker.run(until_idle=0.05)))
    thread.start()
    owns(worker, 1)
    assert signal.getsignal(signal.SIGTERM) is before
    thread.join(WAIT_S)
    assert done


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_cannot_use_the_worker_and_does_not_disturb_it():
    worker = worker_of(MemoryStreams("orders"), Collected())
    with running(worker):
        owns(worker, 1)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                worker.metrics()
            except QueueForkedError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert worker.assigned()
