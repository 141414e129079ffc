"""`batchqueue store`: sinks and their epochs are listed, and old metrics deleted."""

import json

import pytest

from outputs_support.filled import FILLED, path_of, state


def test_sinks_are_listed_with_their_newest_epoch(store, command):
    code, printed, _ = command("ls", path_of(store))
    assert code == 0
    assert [line.split() for line in printed.splitlines()] == [
        ["SINK", "QUERIES", "LAST", "QUERY", "EPOCH", "COMMITTED"],
        ["nightly", "1", "query", "1", "2026-09-21", "14:13:20.500Z"],
        ["other", "1", "batch:1", "0", "?"],
    ]


def test_newest_epochs_of_a_sink_are_listed(store, command):
    code, printed, _ = command("ledger", path_of(store), "nightly", "--newest", "1")
    assert code == 0
    assert [line.split() for line in printed.splitlines()] == [
        ["QUERY", "EPOCH", "COMMITTED", "ROWS"],
        ["query", "1", "2026-09-21", "14:13:20.500Z", "3"],
    ]
    _, printed, _ = command("ledger", path_of(store), "nightly", "--json")
    assert [json.loads(line)["batch_id"] for line in printed.splitlines()] == [0, 1]


def test_unknown_sink_is_refused_with_those_there_are(store, command):
    code, _, message = command("ledger", path_of(store), "nigthly")
    assert code == 2
    assert message.endswith("has no sink 'nigthly'; it has nightly, other\n")


def test_metrics_are_deleted_up_to_a_day(store, command):
    code, printed, _ = command("delete", path_of(store), "nightly", "--before", "1970-01-02")
    assert (code, printed) == (0, "2 rows of sink nightly deleted\n")
    assert state(store) == ({"b": 2}, 1, [0, 1])


@pytest.mark.parametrize("wrong", [("nigthly", "1970-01-02"), ("nightly", "yesterday")])
def test_nothing_is_deleted_of_an_unknown_sink_or_before_no_time(store, command, wrong):
    sink_id, before = wrong
    try:
        code, _, message = command("delete", path_of(store), sink_id, "--before", before)
    except SystemExit as refused:  # by argparse
        code, message = refused.code, before
    assert code == 2
    assert sink_id in message or before in message
    assert state(store) == FILLED
