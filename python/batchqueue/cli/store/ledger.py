"""`store ledger`: the newest epochs of a sink."""

import argparse
import json

from batchqueue.cli.command import OK, Command
from batchqueue.cli.numbers import whole_number
from batchqueue.cli.store.epochs import committed, rows
from batchqueue.cli.store.target import add_sink, add_store, check_sink, open_store
from batchqueue.cli.text import table
from batchqueue.outputs import Epoch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Print the newest epochs of a sink, the oldest of them first: query, epoch, when it was "
        "committed (UTC), and its rows. Nothing is changed."
    )
    add_store(parser)
    add_sink(parser)
    parser.add_argument(
        "--newest", type=whole_number(1), default=20, metavar="N", help="so many epochs (20)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print each with its summary, one JSON object a line"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print them."""
    store = open_store(arguments)
    check_sink(store, arguments)
    epochs = store.summaries(arguments.sink, arguments.newest)
    if arguments.json:
        for epoch in epochs:
            print(json.dumps(epoch._asdict()))
    else:
        print(table("<><>", ("QUERY", "EPOCH", "COMMITTED", "ROWS"), map(_cells, epochs)))
    return OK


def _cells(epoch: Epoch) -> tuple[str, ...]:
    return (epoch.query_id, str(epoch.batch_id), committed(epoch), rows(epoch))


LEDGER = Command(
    name="ledger", help="print the newest epochs of a sink", add_arguments=add_arguments, run=run
)
