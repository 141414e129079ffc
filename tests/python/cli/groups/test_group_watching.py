"""`groups top`, `groups log`, `groups lag` and `groups drain`."""

import json
import re
import socket
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from batchqueue import RetryPolicy
from batchqueue.base.words import counted
from batchqueue.cli import groups as log
from batchqueue.cli import groups as top
from batchqueue.cli.command import duration, ranges, table
from batchqueue.groups import GroupMonitor
from core_support.waits import WAIT_S, eventually
from groups_support.workers import Blocker, Collected, owns, running, send, worker_of

HOST = socket.gethostname()


def stop_after(monkeypatch, module, rounds, between=lambda: None):
    """Lets Ctrl-C come in the pause after so many rounds of a command."""
    left = [rounds]

    def sleep(seconds):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        between()

    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep))


# --- top


def test_top_shows_members_and_partitions(groups, streams):
    send(streams, 5, partition=2)
    blocker = Blocker()
    with running(worker_of(streams, blocker, name="a")):
        assert blocker.entered.wait(WAIT_S)
        code, out, _ = groups("top", "--once")
        blocker.release()
    title, members, partitions = out.strip().split("\n\n")
    assert code == 0
    assert title.startswith("group g on orders: 1 member, 4 partitions, lag 5, at most 5, skew 4.0")
    head, member = (line.split() for line in members.splitlines())
    assert head[:3] == ["MEMBER", "HOST", "PID"]
    assert (member[0], member[1], member[-1]) == ("a", HOST, "0-3")
    row = partitions.splitlines()[3].split()
    assert row[:3] == ["2", "a", "5"]


def test_top_marks_blocked_partitions(groups, streams):
    def handler(batch):
        raise ValueError("no")

    send(streams, 1, partition=1)
    quick = RetryPolicy(attempts=1, max_backoff_ms=1)
    with running(worker_of(streams, handler, retry=quick)), GroupMonitor("g", streams) as monitor:
        eventually(lambda: monitor.metrics().partitions[1].is_blocked, "it is blocked")
        _, out, _ = groups("top", "--once")
    assert [line.split()[0] for line in out.splitlines() if line.endswith("blocked")] == ["1"]


def test_top_says_who_is_leaving(groups, streams):
    blocker = Blocker()
    send(streams, 1, partition=0)
    with running(worker_of(streams, blocker, name="a")), GroupMonitor("g", streams) as monitor:
        assert blocker.entered.wait(WAIT_S)
        monitor.drain(name="a")
        _, out, _ = groups("top", "--once")
        blocker.release()
    assert "(leaving)" in out


def test_top_as_json_is_an_object(groups, streams):
    send(streams, 5, partition=2)
    with running(worker := worker_of(streams, Collected(), name="a")):
        owns(worker, 4)
        code, out, _ = groups("top", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["members"]["a"]["partitions"] == [0, 1, 2, 3]
    assert found["partitions"]["2"].keys() >= {"owner", "lag", "rate", "time_lag_s", "is_hot"}
    assert found["skew"]["partition_lags"].keys() == {"0", "1", "2", "3"}


def test_json_of_an_endless_time_lag_is_null(streams, monkeypatch):
    with GroupMonitor("g", streams) as monitor:
        metrics = monitor.metrics()
    object.__setattr__(metrics.partitions[0], "time_lag_s", float("inf"))
    assert json.loads(top.as_json(metrics))["partitions"]["0"]["time_lag_s"] is None


def test_top_is_shown_again_until_it_is_interrupted(groups, streams, monkeypatch):
    stop_after(monkeypatch, top, 3, lambda: send(streams, 1, partition=0))
    code, out, err = groups("top")
    assert (code, err) == (130, "")
    assert re.findall(r"partitions, lag (\d+)", out) == ["0", "1", "2"]


# --- log


def test_log_has_a_line_for_each_event(groups, streams):
    worker_of(streams, Collected(), name="a").run(until_idle=0.05)
    code, out, _ = groups("log")
    lines = [re.split("  +", line) for line in out.splitlines()]
    assert code == 0
    assert [tuple(line[1:]) for line in lines] == [
        ("join", "a"),
        ("plan", "a", "0-3"),
        ("leaving", "a"),
        ("free", "a", "0-3"),
        ("left", "a"),
    ]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z", line[0]) for line in lines)


def test_log_follows_what_comes_later_and_repeats_nothing(groups, streams, monkeypatch):
    def join():
        worker_of(streams, Collected(), name="b").run(max_seconds=0)

    worker_of(streams, Collected(), name="a").run(max_seconds=0)
    stop_after(monkeypatch, log, 3, join)
    code, out, err = groups("log", "--follow")
    workers = [line.split()[3] for line in out.splitlines() if " join " in line]
    assert (code, err, workers) == (130, "", ["a", "b", "b"])


def test_log_without_follow_returns(groups):
    assert groups("log") == (0, "", "")


def test_log_names_no_worker_where_there_is_none(groups, streams):
    worker_of(streams, Collected(), name="a").run(max_seconds=0)
    streams.resize(5)
    assert re.search(r"Z  resize    -$", groups("log")[1].strip())


# --- drain


def test_drain_waits_until_the_worker_has_left(groups, streams):
    blocker = Blocker()
    send(streams, 1, partition=0)
    first, second = worker_of(streams, blocker, name="a"), worker_of(streams, Collected(), name="b")
    results = []
    with running(first):
        assert blocker.entered.wait(WAIT_S)
        with running(second):
            thread = threading.Thread(target=lambda: results.append(groups("drain", "--name", "a")))
            thread.start()
            with GroupMonitor("g", streams) as monitor:
                eventually(lambda: monitor.metrics().members["a"].is_leaving, "it is leaving")
            assert thread.is_alive()
            blocker.release()
            thread.join(WAIT_S)
            owns(second, 4)
    assert [(code, out) for code, out, _ in results] == [(0, "a is leaving\na has left\n")]


def test_drain_of_a_host_lets_all_of_its_workers_leave(groups, streams):
    with (
        running(*(worker_of(streams, Collected(), name=name) for name in ("a", "b"))),
        GroupMonitor("g", streams) as monitor,
    ):
        eventually(lambda: len(monitor.metrics().members) == 2, "both have joined")
        code, out, _ = groups("drain", "--host", HOST)
        assert monitor.metrics().members == {}
    assert code == 0
    assert sorted(out.splitlines()) == ["a has left", "a is leaving", "b has left", "b is leaving"]


@pytest.mark.parametrize("option", [("--no-wait",), ("--timeout", 0)])
def test_drain_need_not_wait(groups, streams, option):
    blocker = Blocker()
    send(streams, 1, partition=0)
    with running(worker_of(streams, blocker, name="a")):
        assert blocker.entered.wait(WAIT_S)
        code, out, err = groups("drain", "--name", "a", *option)
        blocker.release()
    assert out == "a is leaving\n"
    if option == ("--no-wait",):
        assert (code, err) == (0, "")
    else:
        assert code == 1
        assert "still there after 0 s: a" in err


def test_drain_of_an_unknown_worker_fails_and_names_those_that_are_there(groups, streams):
    code, _, err = groups("drain", "--host", "nowhere")
    assert (code, err) == (1, "no worker on host 'nowhere'; the group has no members\n")
    with running(worker := worker_of(streams, Collected(), name="a")):
        owns(worker, 4)
        code, _, err = groups("drain", "--name", "b")
        assert (code, err) == (1, "no worker named 'b'; there are: a\n")
        code, _, err = groups("drain", "--host", "nowhere")
        assert (code, err) == (1, f"no worker on host 'nowhere'; there are: {HOST}\n")
        owns(worker, 4)


# --- lag


def test_lag_is_printed_for_each_partition_and_in_total(groups, streams):
    send(streams, 3, partition=1)
    send(streams, 1_200, partition=3)
    code, out, err = groups("lag")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["PARTITION", "LAG"],
        ["0", "0"],
        ["1", "3"],
        ["2", "0"],
        ["3", "1,200"],
        ["total", "1,203"],
    ]
    assert "group g on orders has no position yet: every record counts" in err


def test_lag_above_the_limit_fails(groups, streams):
    send(streams, 3)
    assert groups("lag", "--max", 3)[0] == 0
    code, _, err = groups("lag", "--max", 2)
    assert code == 1
    assert "the lag is 3, more than --max 2" in err


def test_unknown_lag_is_not_within_a_limit(groups, streams, monkeypatch):
    script = streams.script(2)
    info = script.info
    monkeypatch.setattr(script, "info", lambda group: replace(info(group), added=None))
    code, out, err = groups("lag", "--max", 100)
    assert (code, out.splitlines()[3].split()) == (1, ["2", "?"])
    assert "the lag of partition 2 is unknown" in err
    assert groups("lag")[0] == 0


def test_lag_of_a_group_that_is_done(groups, streams):
    send(streams, 8)
    worker_of(streams, lambda batch: None).run(until_idle=0.05)
    code, out, err = groups("lag", "--max", 0)
    assert (code, out.splitlines()[-1].split(), err) == (0, ["total", "0"], "")


# --- text


def test_tables_and_numbers():
    assert table("<>", ("A", "B"), [("long", "1")]) == "A     B\nlong  1"
    assert (counted(1, "record"), counted(2_000, "record")) == ("1 record", "2,000 records")
    assert ranges([7, 1, 2, 0, 5, 6]) == "0-2,5-7"
    assert ranges([]) == ""
    expected = {None: "?", float("inf"): "never", 1.25: "1.2 s", 600: "10 min", 7_200: "2 h"}
    assert {each: duration(each) for each in expected} == expected
