"""`batchqueue store`: sinks and their epochs are listed, and old metrics deleted."""

import json

import pytest

from batchqueue.aggregation import CountMetrics, MeanMetrics, SumMetrics, metric_type
from batchqueue.outputs import SqliteStore
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


def test_metrics_of_a_sink_are_listed(store, command):
    code, printed, _ = command("show", path_of(store), "nightly")
    assert code == 0
    assert [line.split() for line in printed.splitlines()][1:] == [
        ["test.count", "count_metrics", "2", "1970-01-01", "00:00:00Z", "1970-01-02", "00:00:00Z"],
        ["test.total", table_of(store), "1", "1970-01-01", "00:00:00Z", "1970-01-01", "00:00:00Z"],
    ]
    _, printed, _ = command("show", path_of(store), "nightly", "--json")
    assert json.loads(printed.splitlines()[0]) == {
        "metric": "test.count",
        "table": "count_metrics",
        "rows": 2,
        "first": 0,
        "last": 86_400,
    }


def table_of(store):
    """SQLite keeps metrics of one kind in one table, whatever their types."""
    return "sum_metrics" if isinstance(store, SqliteStore) else "sum_metrics_total_int"


def test_rows_of_a_metric_are_printed(store, command):
    code, printed, _ = command("show", path_of(store), "nightly", "test.count")
    assert (code, printed) == (
        0,
        "ENTITY  TIME_BUCKET           COUNT\n"
        "a       1970-01-01 00:00:00Z      2\n"
        "b       1970-01-02 00:00:00Z      2\n",
    )
    for limits in (("--entity", "b"), ("--since", "1970-01-02"), ("--before", "1970-01-02")):
        _, printed, _ = command("show", path_of(store), "nightly", "test.count", "--json", *limits)
        entity = "a" if limits[0] == "--before" else "b"
        bucket = 0 if entity == "a" else 86_400
        assert json.loads(printed) == {"entity": entity, "time_bucket": bucket, "count": 2}


def test_rows_beyond_a_limit_are_announced(store, command):
    _, printed, message = command("show", path_of(store), "nightly", "test.count", "--rows", "1")
    assert len(printed.splitlines()) == 2
    assert message == "there are more rows than the 1 shown: use --rows\n"


def test_json_has_no_nan(open_sqlite, command):
    store = open_sqlite()
    with store.transaction() as transaction:
        transaction.merge([SumMetrics("a", 2**60, float("nan"))])
    _, printed, _ = command("show", path_of(store), "default", "SumMetrics", "--json")
    assert json.loads(printed, parse_constant=pytest.fail)["total"] == "nan"
    _, printed, _ = command("show", path_of(store), "default", "SumMetrics")
    assert printed.splitlines()[1].split()[1] == str(2**60)


def test_metric_in_two_tables_is_shown_from_the_chosen_one(open_files, command):
    store = open_files()
    with store.transaction() as transaction:
        transaction.merge([metric_type("twice", CountMetrics)("a", 0, 7)])
        transaction.merge([metric_type("twice", MeanMetrics)("a", 0, 2.5)])
    _, printed, _ = command("show", path_of(store), "default", "--json")
    tables = [json.loads(line)["table"] for line in printed.splitlines()]
    assert tables == ["count_metrics", "mean_metrics"]
    code, _, message = command("show", path_of(store), "default", "twice")
    assert code == 2
    assert message.endswith("is in count_metrics, mean_metrics: choose one with --table\n")
    arguments = ("show", path_of(store), "default", "twice", "--json", "--table")
    _, printed, _ = command(*arguments, "count_metrics")
    assert json.loads(printed)["count"] == 7
    code, _, message = command(*arguments, "sum_metrics")
    assert "has no metric 'twice' in table sum_metrics; it has twice" in message


def test_unknown_metric_is_refused_with_those_there_are(store, command):
    code, _, message = command("show", path_of(store), "nightly", "test.cuont")
    assert code == 2
    assert message.endswith("has no metric 'test.cuont'; it has test.count, test.total\n")


def test_metrics_are_deleted_up_to_a_day(store, command):
    code, printed, _ = command("delete", path_of(store), "nightly", "--before", "1970-01-02")
    assert (code, printed) == (0, "2 rows of sink nightly deleted\n")
    assert state(store) == ({"b": 2}, 1, [0, 1])


def test_metrics_of_a_range_are_deleted(store, command):
    limits = ("--since", "1970-01-02", "--before", "1970-01-03")
    code, printed, _ = command("delete", path_of(store), "nightly", *limits)
    assert (code, printed) == (0, "1 row of sink nightly deleted\n")
    assert state(store) == ({"a": 2}, 1, [0, 1])


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
