"""`store show`: the metrics of a sink, or the rows of one of them."""

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from decimal import Decimal
from itertools import islice

from batchqueue.aggregation import Metrics
from batchqueue.aggregation.metrics import Row
from batchqueue.cli.command import OK, Command
from batchqueue.cli.numbers import whole_number
from batchqueue.cli.store.target import add_sink, add_store, check_sink, open_store
from batchqueue.cli.store.times import TIME_HELP, shown, time_argument
from batchqueue.cli.text import count, printable, table
from batchqueue.exceptions import ConfigError
from batchqueue.outputs.layout import table_layout
from batchqueue.outputs.reading import Selection, StoredMetric

_ROWS = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Print the metrics of a sink: table, number of rows, first and last time bucket (UTC). Or "
        "print the rows of one of them, ordered by entity and time bucket. Nothing is changed."
    )
    add_store(parser)
    add_sink(parser)
    parser.add_argument("metric", metavar="METRIC", nargs="?", help="a metric; default: list them")
    parser.add_argument("--table", metavar="NAME", help="where two tables have the metric")
    parser.add_argument(
        "--entity", action="append", metavar="NAME", help="only this entity; may be repeated"
    )
    parser.add_argument("--since", type=time_argument, metavar="TIME", help=TIME_HELP)
    parser.add_argument("--before", type=time_argument, metavar="TIME", help="likewise, excluded")
    parser.add_argument(
        "--rows", type=whole_number(1), metavar="N", help=f"at most so many ({_ROWS}; --json: all)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")


def run(arguments: argparse.Namespace) -> int:
    """Print them."""
    store = open_store(arguments)
    check_sink(store, arguments)
    stored = store.metrics(arguments.sink)
    if arguments.metric is None:
        _print_metrics(arguments, stored)
        return OK
    metric_type = _chosen(arguments, stored)
    selection = Selection.checked(
        metric_type,
        arguments.sink,
        entities=arguments.entity,
        since=arguments.since,
        before=arguments.before,
    )
    layout = table_layout(metric_type)
    names = [*layout.key_columns[1:], *dict(layout.columns)]
    _print_rows(arguments, names, store.rows(selection))
    return OK


def _chosen(arguments: argparse.Namespace, stored: Sequence[StoredMetric]) -> type[Metrics]:
    found = [metric.metric_type for metric in stored if metric.metric_type.name == arguments.metric]
    if arguments.table is not None:
        found = [metric_type for metric_type in found if metric_type.table == arguments.table]
    if len(found) == 1:
        return found[0]
    if found:
        tables = ", ".join(metric_type.table for metric_type in found)
        raise ConfigError(f"metric {arguments.metric!r} is in {tables}: choose one with --table")
    names = ", ".join(dict.fromkeys(metric.metric_type.name for metric in stored))
    where = "" if arguments.table is None else f" in table {arguments.table}"
    raise ConfigError(
        f"sink {arguments.sink} has no metric {arguments.metric!r}{where}; it has {names or 'none'}"
    )


def _print_metrics(arguments: argparse.Namespace, stored: Iterable[StoredMetric]) -> None:
    if arguments.json:
        for metric_type, *numbers in stored:
            limits = zip(("rows", "first", "last"), numbers, strict=True)
            named = {"metric": metric_type.name, "table": metric_type.table}
            print(json.dumps({**named, **dict(limits)}))
        return
    rows = (
        (
            printable(found.metric_type.name),
            found.metric_type.table,
            count(found.rows),
            shown(found.first),
            shown(found.last),
        )
        for found in stored
    )
    print(table("<<><<", ("METRIC", "TABLE", "ROWS", "FIRST", "LAST"), rows))


def _print_rows(arguments: argparse.Namespace, names: Sequence[str], rows: Iterator[Row]) -> None:
    limit = arguments.rows if arguments.rows or arguments.json else _ROWS
    if arguments.json:
        for row in islice(rows, limit):
            print(json.dumps(dict(zip(names, map(_in_json, row), strict=True))))
    else:
        found = list(islice(rows, limit))
        cells = (
            (_cell(entity), shown(bucket), *map(_cell, values)) for entity, bucket, *values in found
        )
        header = [name.upper() for name in names]
        print(table("<<" + ">" * (len(names) - 2), header, cells))
    if next(rows, None) is not None:
        print(f"there are more rows than the {limit} shown: use --rows", file=sys.stderr)


def _cell(value: object) -> str:
    return "" if value is None else printable(str(value))


def _in_json(value: object) -> object:
    """Return a value as JSON has it: without NaN, infinity, decimals and dates."""
    if isinstance(value, Decimal | date) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return value


SHOW = Command(
    name="show",
    help="print the metrics of a sink, or the rows of one",
    add_arguments=add_arguments,
    run=run,
)
