"""`groups run` as users type it: in new processes, on a program in a directory."""

import io
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap

import pytest

from batchqueue.cli import main
from batchqueue.cli.groups_run import (
    LONGEST_S,
    STEADY_S,
    Report,
    Restarts,
    read_report,
    send_report,
)
from core_support.waits import HANG_S, eventually

PROGRAM = """
import os, signal, sys, threading, time
from pathlib import Path
from batchqueue import RetryPolicy
from batchqueue.groups import MemoryStreams, OnFailure, Worker

number = os.environ.get("BATCHQUEUE_WORKER", "0")
quick = RetryPolicy(attempts=1, max_backoff_ms=1)
streams = MemoryStreams("orders", partitions=2)
with streams.producer() as producer:
    for _ in range(3):
        producer.send(b"x", partition=0)

def starts():
    # How often the program has been started under this number, this time included.
    with Path(f"starts-{number}").open("a+") as file:
        file.write("x")
    return Path(f"starts-{number}").stat().st_size

def made(handler=lambda batch: None, **settings):
    worker = Worker("billing", streams, lease_ms=1_000, **settings)
    worker.handler(handler)
    return worker

worker = made()
"""


@pytest.fixture
def program(tmp_path):
    """Starts `batchqueue groups run` on a program; what is left of it is killed at the end."""
    started = []

    def start(body, *arguments, name="shop:worker"):
        (tmp_path / "shop.py").write_text(PROGRAM + textwrap.dedent(body))
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "batchqueue", "groups", "run", name, *arguments],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        # The processes of a supervisor that is killed leave without it.
        process.kill()
        process.communicate()


def ended(process):
    out, err = process.communicate(timeout=HANG_S)
    return process.returncode, out, err


def read_until(process, pattern):
    """Returns the match of the first line of the output that matches."""
    for line in process.stdout:
        if found := re.search(pattern, line):
            return found
    raise AssertionError(f"{pattern!r} never came; errors: {process.stderr.read()}")


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


IDLE = ("--until-idle", "0.1")
HELD = """
def held(batch):
    print(f"inside {os.getpid()}\\n", end="", flush=True)
    while not Path("released").exists():
        time.sleep(0.01)
    print("outside\\n", end="", flush=True)

worker = made(held)
"""
STUCK = """
def stuck(batch):
    print(f"inside {os.getpid()}\\n", end="", flush=True)
    threading.Event().wait()

def report_leaving():
    administration = streams.open_administration("billing")
    while not any(each.member.leaving for each in administration.group().members.values()):
        time.sleep(0.01)
    print("leaving\\n", end="", flush=True)

worker = made(stuck, grace=60)
threading.Thread(target=report_leaving, daemon=True).start()
"""


# --- one worker


def test_worker_runs_until_it_is_idle(program):
    code, out, err = ended(program("", *IDLE))
    assert (code, err) == (0, "")
    start, end = out.splitlines()
    name = re.fullmatch(r"worker (\S+) starts: group billing, stream orders, pid \d+", start)[1]
    assert re.fullmatch(rf"worker {re.escape(name)} ended after .* s: 3 records handled", end)


def test_worker_ends_after_its_seconds(program):
    assert ended(program("", "--max-seconds", "0"))[0] == 0


@pytest.mark.parametrize("name", ["shop:make", "shop:Shop.make", "shop:Shop.worker"])
def test_function_and_dotted_name_give_a_worker(program, name):
    body = """
    def make():
        return made()

    class Shop:
        make = staticmethod(made)
        worker = worker
    """
    code, out, _ = ended(program(body, *IDLE, name=name))
    assert (code, "3 records handled" in out) == (0, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_lets_the_handler_finish(program, number, tmp_path):
    process = program(HELD)
    read_until(process, "inside")
    process.send_signal(number)
    (tmp_path / "released").touch()
    code, out, _ = ended(process)
    assert code == 0
    assert out.startswith("outside\n")
    assert "3 records handled" in out


def test_second_signal_gives_records_up_which_is_a_failure(program):
    process = program(STUCK)
    read_until(process, "inside")
    process.send_signal(signal.SIGTERM)
    read_until(process, "leaving")
    process.send_signal(signal.SIGTERM)
    code, out, _ = ended(process)
    assert (code, "3 unfinished records" in out) == (1, True)


FAILING = """
def fail(batch):
    raise ValueError("no")

worker = made(fail, retry=quick, on_failure=OnFailure.{policy})
"""


def test_failed_worker_prints_its_summary_and_the_error(program):
    code, out, err = ended(program(FAILING.format(policy="STOP")))
    assert code == 1
    assert "ended after" in out
    assert "batchqueue groups run: orders/0: offsets" in err
    assert "Traceback" not in err


def test_summary_has_what_was_set_aside(program):
    code, out, _ = ended(program(FAILING.format(policy="DEAD_LETTER"), *IDLE))
    assert (code, "0 records handled, 3 dead letters" in out) == (0, True)
    code, out, _ = ended(program(FAILING.format(policy="SKIP"), *IDLE))
    assert (code, "0 records handled, 3 skipped records" in out) == (0, True)


WRONG = """
def with_argument(name):
    return worker

def boom():
    raise KeyError("gone")

def text():
    return "worker"

async def later():
    return worker

silent = Worker("billing", streams)
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shop", "'shop' given; write MODULE:ATTR, for instance billing:worker"),
        ("shop:", "'shop:' given; write MODULE:ATTR"),
        ("shop.py:worker", "names a file; write MODULE:ATTR"),
        ("missing:worker", "no module 'missing', neither in "),
        ("missing.inner:worker", "no module 'missing', neither in "),
        ("shop:wroker", "has no 'wroker', its workers are: silent, worker; write MODULE:ATTR"),
        ("shop:worker.more", "has no 'worker.more'"),
        ("shop:number", "shop:number is a str; name a Worker, or a function without arguments"),
        ("shop:with_argument", "cannot be called without arguments (missing a required argument"),
        ("shop:boom", "shop:boom: the call raised KeyError: 'gone' ("),
        ("shop:text", "shop:text() returned a str; let it return a Worker"),
        ("shop:later", "shop:later() returned a coroutine; let it return a Worker"),
        ("shop:silent", "has no handler; add one"),
    ],
)
def test_wrong_name_is_rejected_with_what_to_write(program, name, message):
    code, _, err = ended(program(WRONG, name=name))
    assert code == 2
    assert err.startswith("batchqueue groups run: ")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import no_such_package", "importing shop raised ModuleNotFoundError: No module named"),
        ("1 / 0", "importing shop raised ZeroDivisionError: division by zero ("),
        ("made(grace=-1)", "batchqueue groups run: grace"),
    ],
)
def test_program_that_cannot_be_imported_is_rejected_with_its_error(program, body, message):
    code, _, err = ended(program(body))
    assert code == 2
    assert message in err
    assert ("shop.py, line" in err) == ("importing" in message)


# --- several processes


class Writes(io.StringIO):
    """A stream that keeps each write, as a pipe gets them from an unbuffered process."""

    def __init__(self):
        super().__init__()
        self.all = []

    def write(self, text):
        self.all.append(text)
        return super().write(text)


@pytest.mark.parametrize(
    ("body", "arguments", "code"),
    [("", (), 0), ("", ("--workers", "2"), 0), ("made(grace=-1)", (), 2)],
    ids=["a worker", "processes", "an error"],
)
def test_each_line_is_written_whole_so_that_those_of_processes_do_not_mix(
    tmp_path, monkeypatch, body, arguments, code
):
    (tmp_path / "shop.py").write_text(PROGRAM + body)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    out, errors = Writes(), Writes()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", errors)
    assert main(["groups", "run", "shop:worker", *arguments, *IDLE]) == code
    written = out.all + errors.all
    assert written
    assert all(text.endswith("\n") for text in written)


def test_each_process_has_a_number_and_all_are_counted(program, tmp_path):
    code, out, err = ended(program("starts()", "--workers", "3", *IDLE))
    assert code == 0
    assert sorted(path.name for path in tmp_path.glob("starts-*")) == [
        f"starts-{number}" for number in (1, 2, 3)
    ]
    assert len(re.findall(r"^process \d \(pid \d+\) starts$", out, re.MULTILINE)) == 3
    assert len(re.findall(r"^process \d \(pid \d+\) ended with exit code 0$", out, re.M)) == 3
    assert out.splitlines()[-1] == "all 3 processes ended: 9 records handled"
    assert err.count("stream orders is in memory") == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_is_passed_on_and_all_end_in_calm(program, number, tmp_path):
    process = program(HELD, "--workers", "2")
    for _ in range(2):
        read_until(process, "inside")
    process.send_signal(number)
    (tmp_path / "released").touch()
    code, out, err = ended(process)
    assert code == 0
    assert f"{number.name}: the processes are ending" in err
    assert out.count("outside") == 2
    assert out.splitlines()[-1] == "all 2 processes ended: 6 records handled"


def test_interrupt_of_a_terminal_reaches_each_process_only_once(program, tmp_path):
    """A terminal sends it to the whole group of the supervisor; a second one gives records up."""
    process = program(HELD, "--workers", "2")
    for _ in range(2):
        read_until(process, "inside")
    os.killpg(process.pid, signal.SIGINT)
    (tmp_path / "released").touch()
    code, out, _ = ended(process)
    assert (code, out.count("outside"), "unfinished" in out) == (0, 2, False)


def test_second_signal_is_passed_on_as_well(program):
    process = program(STUCK, "--workers", "2")
    for _ in range(2):
        read_until(process, "inside")
    process.send_signal(signal.SIGTERM)
    for _ in range(2):
        read_until(process, "leaving")
    process.send_signal(signal.SIGTERM)
    code, out, _ = ended(process)
    assert code == 1
    assert out.splitlines()[-1].endswith("0 records handled, 6 unfinished records")


@pytest.mark.parametrize(
    ("death", "reason"),
    [("os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL"), ("1 / 0", "exit code 1")],
    ids=["killed", "raised"],
)
def test_process_that_dies_is_started_again(program, tmp_path, death, reason):
    if death == "1 / 0":  # outside of the import, which would be an invalid use
        death = "Worker.run = lambda *args, **kwargs: 1 / 0"
    body = f"""
    if starts() == 1 and number == "2":
        {death}
    """
    code, out, _ = ended(program(body, "--workers", "2", *IDLE))
    assert code == 0
    assert re.search(rf"process 2 \(pid \d+\) .*{reason}; it starts again in 1 s", out)
    assert [(tmp_path / f"starts-{number}").stat().st_size for number in (1, 2)] == [1, 2]
    assert out.splitlines()[-1] == "all 2 processes ended: 6 records handled"


def test_process_that_is_waiting_for_its_restart_is_not_started_after_a_signal(program, tmp_path):
    process = program(
        """
        if starts() >= 1 and number == "2":
            os.kill(os.getpid(), signal.SIGKILL)
        """,
        *("--workers", "2"),
    )
    read_until(process, "it starts again in 2 s")
    process.send_signal(signal.SIGTERM)
    code, _, _ = ended(process)
    assert code == 1
    assert (tmp_path / "starts-2").stat().st_size == 2


def test_process_is_not_started_again_when_the_time_is_over(program, tmp_path):
    body = 'starts()\nif number == "2": os.kill(os.getpid(), signal.SIGKILL)'
    code, out, _ = ended(program(body, "--workers", "2", "--max-seconds", "0.5"))
    assert (code, "was ended by SIGKILL; the time is over" in out) == (1, True)
    assert (tmp_path / "starts-2").stat().st_size == 1


def test_error_that_needs_the_user_starts_nothing_again(program, tmp_path):
    body = "starts()\n" + FAILING.format(policy="STOP")
    code, out, err = ended(program(body, "--workers", "2"))
    assert code == 1
    assert out.count("ended with exit code 1\n") == 2
    assert err.count("batchqueue groups run: orders/0: offsets") == 2
    assert (tmp_path / "starts-1").stat().st_size == 1


def test_invalid_use_ends_all_processes(program):
    body = 'if number == "1": del worker'
    code, out, err = ended(program(body, "--workers", "2"))
    assert code == 2
    assert "shop has no" not in out
    assert "has no 'worker'" in err
    assert "the processes are ending" in err
    assert "starts again" not in out


def test_workers_leave_when_their_supervisor_is_killed(program, tmp_path):
    process = program(HELD, "--workers", "2")
    pids = [int(read_until(process, r"inside (\d+)")[1]) for _ in range(2)]
    process.kill()
    (tmp_path / "released").touch()
    out, _ = process.communicate(timeout=HANG_S)
    assert out.count("outside") == 2
    assert out.count("3 records handled") == 2
    eventually(lambda: not any(map(is_alive, pids)), "both have ended")


def test_file_in_the_directory_cannot_take_the_place_of_the_package(program, tmp_path):
    (tmp_path / "batchqueue.py").write_text("raise SystemExit(7)")
    (tmp_path / "json.py").write_text("raise SystemExit(7)")
    assert ended(program("", "--workers", "2", *IDLE))[0] == 0


# --- parts


def test_waits_double_up_to_a_limit_and_begin_again_after_steady_work():
    restarts = Restarts()
    waits = [restarts.next(ran_s=0) for _ in range(8)]
    assert waits == [1, 2, 4, 8, 16, LONGEST_S, LONGEST_S, LONGEST_S]
    assert [restarts.next(ran_s=STEADY_S), restarts.next(ran_s=0)] == [1, 2]


def test_report_of_a_process_that_died_is_empty():
    ours, theirs = socket.socketpair()
    theirs.close()
    assert read_report(ours) == Report()
    ours, theirs = socket.socketpair()
    send_report(theirs, Report(handled=3, is_final=True))
    assert read_report(ours) == Report(handled=3, is_final=True)
    send_report(theirs, Report())  # the other end is closed
    theirs.close()
