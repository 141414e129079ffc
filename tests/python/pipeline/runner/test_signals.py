"""SIGTERM and Ctrl-C end `run` with a last cut; a process ends cleanly whatever happens."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import pipeline_support
from batchqueue.pipeline import Pipeline
from core_support.waits import HANG_S, WAIT_S
from pipeline_support.numbers import Numbers
from pipeline_support.sinks import Kept, Ledger

SUPPORT = Path(pipeline_support.__file__).parents[1]

PROGRAM = """
import dataclasses, logging, os, signal, sys, threading, time
from batchqueue.pipeline import FunctionSink, Pipeline, StageFailedError
from pipeline_support.numbers import Numbers
from pipeline_support.sinks import Gated, Kept, Ledger

logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
source = Numbers(10**9, bounded=False)
flow = Pipeline("p", checkpoint="state", cut_interval_s=0.1)
ledger = Ledger("ledger.db")
numbers = flow.source(source)
numbers.to(ledger)

class Slow(Kept):
    def write(self, chunks):
        if not self.writes:
            print("inside", flush=True)
        time.sleep(0.01)
        super().write(chunks)

class Hung(Slow):
    def write(self, chunks):
        super().write(chunks)
        if len(self.numbers) > 2_000:
            print("hangs", flush=True)
            threading.Event().wait()

{body}
"""


@pytest.fixture
def program(tmp_path):
    started = []

    def start(body):
        path = os.pathsep.join([str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(body=textwrap.dedent(body))],
            env={**os.environ, "PYTHONPATH": path},
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def wait_for(process, line):
    for found in process.stdout:
        if found.strip() == line:
            return
    pytest.fail(f"no {line!r}: {process.stderr.read()}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_under_pressure_ends_with_a_last_cut(number, program, tmp_path):
    process = program(
        """
        numbers.map(lambda chunk: chunk, workers=2).to(Slow())
        summary = flow.run()
        print(summary.complete, summary.rows_read, flush=True)
        """
    )
    wait_for(process, "inside")
    process.send_signal(number)
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    complete, rows = out.split()
    assert complete == "True"
    assert f"{signal.Signals(number).name}: stopping pipeline p" in err
    assert Ledger(tmp_path / "ledger.db").numbers == list(range(int(rows)))


def test_second_signal_gives_up(program, tmp_path):
    process = program(
        """
        numbers.to(Hung())
        summary = flow.run(grace=1000)
        print(summary.complete, summary.waited_for, flush=True)
        """
    )
    wait_for(process, "hangs")
    process.send_signal(signal.SIGTERM)
    for line in process.stderr:
        if "stopping pipeline" in line:
            break
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    assert out.split() == ["False", "Hung"]
    numbers = Ledger(tmp_path / "ledger.db").numbers
    assert numbers == list(range(len(numbers)))


def test_grace_bounds_the_end(program):
    process = program(
        """
        numbers.to(Hung())
        summary = flow.run(grace=0.5)
        print(summary.complete, summary.waited_for, flush=True)
        """
    )
    wait_for(process, "hangs")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    assert out.split() == ["False", "Hung"]


@pytest.mark.parametrize(
    ("body", "printed"),
    [
        ("flow.start().wait(0.5)", ""),
        ("run = flow.start()\nrun.stop()\nprint('stopped')", "stopped"),
        (
            """
            def fail(chunk):
                raise ValueError("bad")
            numbers.map(fail).to(Kept())
            try:
                flow.run()
            except StageFailedError as error:
                print(type(error.__cause__).__name__)
            """,
            "ValueError",
        ),
        (
            """
            def hang(split):
                threading.Event().wait()
                yield
            source.read = hang
            run = flow.start()
            print(run.stop(0.2).complete)
            """,
            "False",
        ),
        (
            """
            hung = Hung()
            numbers.to(hung)
            run = flow.start()
            while not hung.writes:
                time.sleep(0.01)
            with run:
                raise KeyboardInterrupt
            """,
            "inside",
        ),
    ],
    ids=["never stopped", "stopped", "failed", "source hangs", "interrupted block"],
)
def test_process_ends_cleanly(body, printed, program, tmp_path):
    process = program(body)
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == (-signal.SIGINT if "KeyboardInterrupt" in body else 0), err
    assert printed in out
    assert "Fatal" not in err
    numbers = Ledger(tmp_path / "ledger.db").numbers
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("block", [False, True], ids=["at the exit", "in a block"])
def test_ctrl_c_while_a_run_that_is_to_stop_waits_gives_up(block, program, tmp_path):
    process = program(
        f"""
        hung = Hung()
        numbers.to(hung)
        run = flow.start()
        while len(hung.numbers) <= 2_000:
            time.sleep(0.01)

        def watch():
            while run.stats().state != "stopping":
                time.sleep(0.01)
            print("stops", flush=True)

        threading.Thread(target=watch, daemon=True).start()
        if {block}:
            with run:
                pass
        """
    )
    wait_for(process, "stops")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=HANG_S)
    assert process.returncode == (-signal.SIGINT if block else 0), err
    # The interrupt of a block is shown when the block has given up, before the exit.
    given_up, interrupt = err.index("no time is left to wait for Hung"), err.index("Traceback")
    assert given_up < interrupt
    assert "KeyboardInterrupt" in err
    numbers = Ledger(tmp_path / "ledger.db").numbers
    assert numbers == list(range(len(numbers)))


def test_what_was_opened_before_a_run_is_closed_after_its_last_cut(program, tmp_path):
    process = program(
        """
        import atexit
        is_open = True
        @atexit.register
        def close():
            global is_open
            is_open = False
            print("closed after", slow.numbers[-1], flush=True)
        class Client(Slow):
            def write(self, chunks):
                assert is_open
                super().write(chunks)
        slow = Client()
        numbers.to(slow)
        run = flow.start()
        while not slow.writes:
            time.sleep(0.01)
        """
    )
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    assert "closed after" in out
    assert "StageFailedError" not in err
    last = int(out.split()[-1])
    assert Ledger(tmp_path / "ledger.db").numbers == list(range(last + 1))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_sink_that_hangs_while_it_is_opened_can_be_interrupted(number, program, tmp_path):
    process = program(
        """
        class Stuck(Kept):
            def open(self, pipeline):
                print("opening", flush=True)
                threading.Event().wait()

        numbers.to(Stuck())
        flow.run()
        """
    )
    wait_for(process, "opening")
    process.send_signal(number)
    process.communicate(timeout=HANG_S)
    assert process.returncode == -number


@pytest.mark.parametrize(
    "body",
    [
        """
        class Stuck(Kept):
            def open(self, pipeline):
                interrupt()

        numbers.to(Stuck())
        flow.run()
        """,
        """
        class Stuck(Kept):
            def write(self, chunks):
                interrupt()

        numbers.to(Stuck())
        with flow.start() as run:
            run.wait()
        """,
    ],
    ids=["open", "wait"],
)
def test_interrupt_that_does_not_wake_the_main_thread(body, program):
    # The signal comes to another thread; one that comes just before a wait does the same.
    interrupt = """
        def interrupt():
            time.sleep(0.2)  # the main thread waits
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            threading.Event().wait()
    """
    process = program(textwrap.dedent(interrupt) + textwrap.dedent(body))
    process.communicate(timeout=HANG_S)
    assert process.returncode == -signal.SIGINT


def test_the_exit_of_the_interpreter_takes_a_last_cut(program, tmp_path):
    process = program(
        """
        flow.settings = dataclasses.replace(flow.settings, cut_interval_s=1000)
        run = flow.start()
        while len(source.reads) < 50:
            time.sleep(0.01)
        """
    )
    _, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    assert len(Ledger(tmp_path / "ledger.db").numbers) >= 5_000


def test_a_second_process_is_refused(program, tmp_path):
    first = program("run = flow.start()\nprint('runs', flush=True)\nsys.stdin.read()")
    wait_for(first, "runs")
    second = program("flow.run()")
    _, err = second.communicate(timeout=HANG_S)
    assert second.returncode == 1
    assert "CheckpointError" in err
    assert "is in use by a running pipeline" in err


def test_run_in_another_thread_leaves_signals_alone():
    before = signal.getsignal(signal.SIGTERM)
    flow, sink, found = Pipeline("p"), Kept(), []

    def run():
        found.append(flow.run())
        found.append(signal.getsignal(signal.SIGTERM))

    flow.source(Numbers(1_000)).to(sink)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join(WAIT_S)
    assert (found[0].complete, found[1]) == (True, before)


def test_timeout_stops_as_a_signal_does(tmp_path):
    flow, ledger = Pipeline("p"), Ledger(tmp_path / "ledger.db")
    flow.source(Numbers(10**9, bounded=False)).to(ledger)
    summary = flow.run(timeout=0.2)
    assert summary.complete
    assert ledger.numbers == list(range(summary.rows_read))
