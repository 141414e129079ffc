"""`groups reset`, `groups redrive`, `groups trim` and `groups resize`."""

import io
import threading

import pytest

from batchqueue import RetryPolicy
from batchqueue.cli import groups_reset as positions
from batchqueue.groups import GroupMonitor, OnFailure, Start
from batchqueue.groups.record import format_id
from core_support.waits import WAIT_S, eventually
from groups_support.workers import Collected, owns, running, send, worker_of


def done_by(streams, **settings):
    """Returns what a worker of the group gets now."""
    collected = Collected()
    worker_of(streams, collected, **settings).run(until_idle=0.05)
    return sorted(collected.values, key=lambda value: (len(value), value))


def lags(streams):
    with GroupMonitor("g", streams) as monitor:
        return {number: each.lag for number, each in monitor.metrics().partitions.items()}


def set_aside(streams, count, *, partition=0, **headers):
    """Lets records of a partition become dead letters of the group."""

    def fail(batch):
        raise ValueError("no")

    send(streams, count, partition=partition, **headers)
    quick = RetryPolicy(attempts=1, max_backoff_ms=1)
    worker_of(streams, fail, retry=quick, on_failure=OnFailure.DEAD_LETTER).run(until_idle=0.05)
    assert len(streams.dead_letters("g")[partition]) == count


# --- reset


def test_reset_to_the_earliest_lets_records_come_again(groups, streams):
    send(streams, 8)
    first = done_by(streams)
    code, out, _ = groups("reset", "--to", "earliest", "--yes")
    assert code == 0
    assert "group g on orders, 4 partitions, to earliest: 8 records will be handled again" in out
    assert sum(lags(streams).values()) == 8
    assert done_by(streams) == first


def test_reset_to_the_latest_skips_records_that_are_not_done(groups, streams):
    send(streams, 8)
    code, out, _ = groups("reset", "--to", "latest", "--yes")
    assert (code, "8 records will be skipped" in out) == (0, True)
    assert sum(lags(streams).values()) == 0
    send(streams, 1, prefix="new")
    assert done_by(streams) == ["new0"]


def test_reset_of_a_partition_leaves_the_others(groups, streams):
    send(streams, 8)
    done_by(streams)
    assert groups("reset", "--to", "earliest", "--partition", 2, "--yes")[0] == 0
    assert lags(streams) == {0: 0, 1: 0, 2: 2, 3: 0}
    assert done_by(streams) == ["2", "6"]


@pytest.mark.parametrize("as_text", [str, format_id])
@pytest.mark.parametrize("was_done", [False, True])
def test_reset_to_an_offset_counts_the_records_after_it(groups, streams, was_done, as_text):
    send(streams, 2_500, partition=1)
    if was_done:
        done_by(streams)
    entries = streams.script(1).read(0, 2_500)
    offset = as_text(entries[299].offset)
    code, out, _ = groups("reset", "--to", offset, "--partition", 1, "--yes")
    effect = "2,200 records will be handled again" if was_done else "300 records will be skipped"
    assert (code, effect in out) == (0, True)
    assert lags(streams)[1] == 2_200
    again = done_by(streams)
    assert (len(again), again[0]) == (2_200, "300")
    assert lags(streams)[1] == 0


def test_reset_to_an_offset_suits_partitions_that_end_before_it(groups, streams):
    send(streams, 3, partition=1)
    done_by(streams)
    [_, second, _] = streams.script(1).read(0, 3)
    assert groups("reset", "--to", second.offset, "--yes")[0] == 0
    assert lags(streams) == {0: 0, 1: 1, 2: 0, 3: 0}
    # Not in their future, where a record might be skipped.
    assert [streams.script(each).info("g").offset for each in (0, 1)] == [0, second.offset]


def test_reset_to_an_offset_before_what_was_trimmed_begins_with_what_is_left(groups, streams):
    send(streams, 3, partition=1)
    done_by(streams)
    first = streams.script(1).read(0, 1)[0].offset
    assert groups("trim")[1] == "3 records of orders removed\n"
    send(streams, 2, partition=1, prefix="new")
    assert groups("reset", "--to", first, "--partition", 1, "--yes")[0] == 0
    assert lags(streams)[1] == 2
    assert done_by(streams) == ["new0", "new1"]


def test_records_that_are_trimmed_while_they_are_counted_reset_nothing(
    groups, streams, monkeypatch
):
    send(streams, 3, partition=1)
    done_by(streams)
    first = streams.script(1).read(0, 1)[0].offset
    count = positions._count

    def count_and_trim(connection, partition, after, end):
        counted = count(connection, partition, after, end)
        del streams.script(partition).state.entries[:2]
        return counted

    monkeypatch.setattr(positions, "_count", count_and_trim)
    code, _, err = groups("reset", "--to", first, "--partition", 1, "--yes")
    assert code == 1
    assert "were trimmed while they were counted; nothing was reset" in err
    assert lags(streams)[1] == 0


@pytest.mark.parametrize("to", ["soon", "-1", "1e3", "5-", "9" * 30])
def test_reset_to_anything_else_is_rejected(groups, to):
    code, _, err = groups("reset", f"--to={to}", "--yes")
    assert code == 2
    assert "give earliest, latest, an offset, or an id of Redis" in err


def test_reset_to_the_future_is_rejected(groups, streams):
    send(streams, 1, partition=0)
    end = streams.script(0).state.end
    code, _, err = groups("reset", "--to", end + 1, "--yes")
    assert code == 2
    assert f"--to is {end + 1}, after the last record, which has the offset {end}" in err


def test_reset_of_a_group_with_members_is_rejected(groups, streams):
    with running(worker := worker_of(streams, Collected(), name="a")):
        owns(worker, 4)
        code, _, err = groups("reset", "--to", "earliest", "--yes")
        assert code == 2
        assert "group g on orders has members: a; let them leave: `batchqueue groups drain`" in err
        owns(worker, 4)


def test_member_that_joins_during_the_question_prevents_the_reset(groups, streams, monkeypatch):
    send(streams, 4)
    done_by(streams)
    worker = worker_of(streams, Collected(), name="a")

    def answer(question):
        worker.start()
        owns(worker, 4)
        return "y"

    monkeypatch.setattr("builtins.input", answer)
    try:
        code, _, err = groups("reset", "--to", "earliest")
    finally:
        worker.leave()
    assert (code, "has members: a" in err) == (2, True)
    assert sum(lags(streams).values()) == 0


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("YES", 0), ("n", 1), ("", 1)])
def test_reset_asks_first(groups, streams, monkeypatch, answer, code):
    send(streams, 4)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{answer}\n"))
    found, out, err = groups("reset", "--to", "latest")
    assert found == code
    assert "Reset? [y/N]" in out
    assert ("nothing was reset" in err) == (code == 1)
    assert sum(lags(streams).values()) == (0 if code == 0 else 4)


def test_reset_without_an_answer_does_nothing(groups, streams, monkeypatch):
    send(streams, 4)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    code, _, err = groups("reset", "--to", "latest")
    assert (code, "--yes resets without a question" in err) == (1, True)
    assert sum(lags(streams).values()) == 4


def test_reset_decides_where_a_new_group_begins(groups, streams):
    send(streams, 4)
    assert groups("reset", "--to", "earliest", "--yes")[0] == 0
    assert len(done_by(streams, start=Start.LATEST)) == 4


# --- redrive


def test_redrive_sends_dead_letters_back_without_their_headers(groups, streams):
    set_aside(streams, 3, partition=2, kind=b"x")
    code, out, _ = groups("redrive")
    assert (code, out) == (0, "3 dead letters of group g on orders sent back\n")
    assert streams.dead_letters("g") == {}
    collected = Collected()
    worker_of(streams, collected).run(until_idle=0.05)
    assert [(record.value, record.headers) for record in collected.records[2]] == [
        (str(number), (("kind", b"x"),)) for number in range(3)
    ]


def test_redrive_of_a_partition_and_with_a_limit(groups, streams):
    set_aside(streams, 3, partition=1)
    set_aside(streams, 3, partition=2)
    assert groups("redrive", "--partition", 2, "--limit", 2)[1].startswith("2 dead letters")
    assert {each: len(found) for each, found in streams.dead_letters("g").items()} == {1: 3, 2: 1}
    assert groups("redrive", "--limit", 3)[1].startswith("3 dead letters")
    assert {each: len(found) for each, found in streams.dead_letters("g").items()} == {2: 1}
    assert groups("redrive")[1].startswith("1 dead letter of")
    assert groups("redrive")[:2] == (0, "0 dead letters of group g on orders sent back\n")


def test_redrive_takes_many_in_blocks(groups, streams):
    set_aside(streams, 1_100)
    assert groups("redrive")[1].startswith("1,100 dead letters")
    assert done_by(streams) == [str(number) for number in range(1_100)]


def test_redrive_ends_although_letters_fail_again_meanwhile(groups, streams, monkeypatch):
    set_aside(streams, 2)
    script = streams.script(0)
    send_back = script.send_back

    def fail_again(group, letters):
        sent = send_back(group, letters)
        script.state.dead[group].extend(letters)
        return sent

    monkeypatch.setattr(script, "send_back", fail_again)
    assert groups("redrive")[:2] == (0, "2 dead letters of group g on orders sent back\n")


def test_redrive_beside_another_one_fails_and_says_so(groups, streams, monkeypatch):
    set_aside(streams, 2)
    monkeypatch.setattr(streams.script(0), "send_back", lambda group, letters: 0)
    code, out, err = groups("redrive")
    assert (code, out) == (1, "0 dead letters of group g on orders sent back\n")
    assert "2 dead letters less than there were: another redrive" in err


# --- trim


def test_trim_removes_what_is_done_and_nothing_else(groups, streams):
    send(streams, 8)
    assert groups("trim") == (0, "0 records of orders removed\n", "")
    done_by(streams)
    send(streams, 1, prefix="new", partition=0)
    assert groups("trim") == (0, "8 records of orders removed\n", "")
    assert done_by(streams) == ["new0"]


# --- resize


def test_resize_raises_the_number_and_says_what_follows(groups, streams):
    code, out, _ = groups("resize", "--partitions", 6)
    assert (code, streams.partition_count) == (0, 6)
    assert "orders has 6 partitions, 4 before." in out
    assert "new records of a key may go to another partition" in out
    assert "Programs that give partitions=4 must give 6" in out


def test_resize_to_fewer_is_rejected(groups, streams):
    code, _, err = groups("resize", "--partitions", 3)
    assert (code, streams.partition_count) == (2, 4)
    assert 'stream "orders" has 4 partitions, --partitions is 3' in err


def test_resize_to_too_many_is_rejected(groups, streams):
    code, _, err = groups("resize", "--partitions", 20_000)
    assert (code, "at most 16_384" in err, streams.partition_count) == (2, True, 4)


def test_resize_to_the_same_number_changes_nothing(groups):
    assert groups("resize", "--partitions", 4) == (0, "orders has 4 partitions already\n", "")


def test_members_share_the_new_partitions(groups, streams):
    with running(worker := worker_of(streams, Collected())):
        owns(worker, 4)
        groups("resize", "--partitions", 6)
        owns(worker, 6)


def test_resize_waits_until_the_old_partitions_are_drained(groups, streams):
    send(streams, 4)
    results = []
    thread = threading.Thread(
        target=lambda: results.append(groups("resize", "--partitions", 6, "--wait"))
    )
    thread.start()
    eventually(lambda: streams.partition_count == 6, "it is resized")
    with running(worker_of(streams, Collected())):
        thread.join(WAIT_S)
    [(code, out, err)] = results
    assert (code, out.splitlines()[-1]) == (0, "the old partitions are drained")
    assert "group g on orders has no members: start a worker" in err


def test_wait_of_a_resize_ends_although_producers_continue(groups, streams):
    """What is added after the resize is not waited for: nor are new partitions."""
    send(streams, 4)
    done_by(streams)
    script = streams.script(0)
    resize = streams.resize

    def resize_and_send(partitions):
        now = resize(partitions)
        send(streams, 1, partition=5)
        return now

    streams.resize = resize_and_send
    assert groups("resize", "--partitions", 6, "--wait", "--timeout", 0)[0] == 0
    assert script.info("g").lag == 0


def test_wait_of_a_resize_has_a_limit(groups, streams):
    send(streams, 1, partition=3)
    code, _, err = groups("resize", "--partitions", 6, "--wait", "--timeout", 0)
    assert (code, streams.partition_count) == (1, 6)
    assert "not done after 0 s: partition 3" in err


def test_same_number_with_wait_waits_as_well(groups, streams):
    send(streams, 1, partition=3)
    arguments = ("--partitions", 4, "--wait", "--timeout", 0)
    assert groups("resize", *arguments)[0] == 1
    done_by(streams)
    assert groups("resize", *arguments)[0] == 0
