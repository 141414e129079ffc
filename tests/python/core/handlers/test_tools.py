"""Coverage, debuggers and profilers see handlers: each in a process, as a user runs it."""

import json
import subprocess
import sys
import textwrap

import pytest

from core_support.scripts import SCRIPT_S

HANDLER = """
import sys
import threading

from batchqueue import BatchQueue, BatchQueueConfig, PartitionPolicy, ThreadPolicy


def price(item):
    doubled = item * 2
    return doubled


def handle(batch):
    total = sum(price(item) for item in batch)
    results.append(total)


results = []


def work(**settings):
    settings.setdefault("threads", ThreadPolicy.fixed(2))
    config = BatchQueueConfig(partitions=PartitionPolicy.fixed(2), **settings)
    with BatchQueue("orders", config) as queue:
        queue.add_handler(int, handle)
        queue.produce_many(range(100))
    assert sum(results) == 9_900
"""

POOL = 'work(threads=None, shared_scheduler=("POOL", ThreadPolicy.fixed(1)))'


@pytest.fixture
def run_python(tmp_path):
    """Returns a function that runs a program in a new process; returns what it printed."""

    def run(body, *options):
        program = tmp_path / "program.py"
        program.write_text(HANDLER + textwrap.dedent(body))
        process = subprocess.run(
            [sys.executable, *options, str(program)],
            capture_output=True,
            text=True,
            timeout=SCRIPT_S,
            cwd=tmp_path,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        return process.stdout

    return run


def line_of(text):
    lines = HANDLER.splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.mark.parametrize("body", ["work()", POOL], ids=["own threads", "shared scheduler"])
def test_coverage_counts_the_lines_of_a_handler(run_python, tmp_path, body):
    pytest.importorskip("coverage")
    run_python(body, "-m", "coverage", "run", "--concurrency=thread", "--branch")
    subprocess.run(
        [sys.executable, "-m", "coverage", "json", "-q"], cwd=tmp_path, check=True, timeout=SCRIPT_S
    )
    measured = json.loads((tmp_path / "coverage.json").read_text())["files"]["program.py"]
    assert line_of("doubled = item * 2") in measured["executed_lines"]
    assert line_of("results.append(total)") in measured["executed_lines"]
    assert measured["missing_lines"] == []


@pytest.mark.parametrize("body", ["work()", POOL], ids=["own threads", "shared scheduler"])
def test_a_trace_of_the_standard_library_counts_them_too(run_python, body):
    program = f"""
    import trace

    tracer = trace.Trace(count=True, trace=False)
    threading.settrace(tracer.globaltrace)
    {body}
    threading.settrace(None)
    counts = {{line: n for (file, line), n in tracer.results().counts.items() if file == __file__}}
    print(counts[{line_of("doubled = item * 2")}], counts[{line_of("results.append(total)")}] > 0)
    """
    assert run_python(program).split() == ["100", "True"]


def test_a_debugger_stops_at_a_breakpoint_in_a_handler_and_nowhere_else(run_python):
    program = f"""
    import bdb

    class Debugger(bdb.Bdb):
        stops = []

        def user_line(self, frame):
            local = frame.f_locals.get("item")
            name = threading.current_thread().name
            self.stops.append((frame.f_lineno, local, name.rpartition("-")[0]))
            self.set_continue()

    debugger = Debugger()
    assert debugger.set_break(__file__, {line_of("return doubled")}, cond="item % 50 == 0") is None
    debugger.reset()
    threading.settrace(debugger.trace_dispatch)
    work(threads=ThreadPolicy.fixed(1))
    threading.settrace(None)
    print(*debugger.stops)
    """
    # The first stop is where a debugger learns of the frame to return to.
    stops = [(line_of("total = "), None), *((line_of("return doubled"), item) for item in (0, 50))]
    expected = [(*stop, "batchqueue-orders") for stop in stops]
    assert run_python(program).strip() == " ".join(map(str, expected))


def test_a_profiler_counts_the_calls_of_a_handler(run_python):
    """`cProfile` has no hook for other threads: `threading.setprofile` starts one in each."""
    program = """
    import cProfile
    import pstats

    profiles = []

    def begin(frame, event, argument):
        profile = cProfile.Profile()
        profiles.append(profile)
        profile.enable()

    threading.setprofile(begin)
    work(threads=ThreadPolicy.fixed(1))
    threading.setprofile(None)
    calls = {}
    for profile in profiles:
        profile.create_stats()
        for (_, _, name), (count, *_) in profile.stats.items():
            calls[name] = calls.get(name, 0) + count
    print(calls["price"])
    """
    if sys.version_info >= (3, 12):
        pytest.skip("cProfile uses sys.monitoring from 3.12 on; see the next test")
    assert run_python(program).split() == ["100"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in Python 3.12")
def test_cprofile_in_the_main_thread_counts_the_calls_of_a_handler(run_python):
    program = """
    import cProfile

    with cProfile.Profile() as profile:
        work(threads=ThreadPolicy.fixed(1))
    profile.create_stats()
    calls = {name: count for (_, _, name), (count, *_) in profile.stats.items()}
    print(calls["price"], calls["handle"] > 0)
    """
    assert run_python(program).split() == ["100", "True"]


def test_a_profile_hook_sees_the_calls_of_a_handler(run_python):
    program = """
    import collections

    calls = collections.Counter()

    def hook(frame, event, argument):
        if event == "call":
            calls[frame.f_code.co_name] += 1

    threading.setprofile(hook)
    work()
    threading.setprofile(None)
    print(calls["price"], calls["handle"] > 0)
    """
    assert run_python(program).split() == ["100", "True"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in Python 3.12")
def test_a_tool_of_sys_monitoring_sees_the_lines_of_a_handler(run_python):
    program = """
    lines = set()
    events = sys.monitoring.events
    sys.monitoring.use_tool_id(4, "test")
    sys.monitoring.register_callback(4, events.LINE, lambda code, line: lines.add(line))
    sys.monitoring.set_events(4, events.LINE)
    work()
    sys.monitoring.set_events(4, 0)
    print(*sorted(lines))
    """
    assert str(line_of("doubled = item * 2")) in run_python(program).split()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="settrace_all_threads is new in Python 3.12")
def test_settrace_all_threads_reaches_drain_threads_that_run(run_python):
    program = """
    calls = []
    config = BatchQueueConfig(threads=ThreadPolicy.fixed(1))
    with BatchQueue("orders", config) as queue:
        queue.add_handler(int, handle)
        queue.produce(1)
        queue.flush()
        threading.settrace_all_threads(lambda frame, event, argument: calls.append(frame.f_code))
        queue.produce(2)
        queue.flush()
        threading.settrace_all_threads(None)
    print(handle.__code__ in calls)
    """
    assert run_python(program).split() == ["True"]


def test_a_breakpoint_of_pdb_works_in_a_handler(run_python):
    program = """
    import io
    import pdb

    def debugged(batch):
        value = sum(batch)
        commands = io.StringIO("print(value)\\nnext\\ncontinue\\n")
        pdb.Pdb(stdin=commands, stdout=output, nosigint=True, readrc=False).set_trace()
        value += 1
        results.append(value)

    output = io.StringIO()
    with BatchQueue("orders", BatchQueueConfig(threads=ThreadPolicy.fixed(1))) as queue:
        queue.add_handler(int, debugged)
        queue.produce_many([1, 2, 3])
    assert "6" in output.getvalue(), output.getvalue()
    print(*results)
    """
    assert run_python(program).split() == ["7"]
