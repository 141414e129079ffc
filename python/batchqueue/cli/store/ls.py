"""`store ls`: the sinks of a store."""

import argparse

from batchqueue.cli.command import OK, Command
from batchqueue.cli.store.epochs import committed
from batchqueue.cli.store.target import add_store, open_store
from batchqueue.cli.text import UNKNOWN, count, printable, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = (
        "Print the sinks of a store: how many queries have a mark, and the newest epoch. Nothing "
        "is changed."
    )
    add_store(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print them."""
    store = open_store(arguments)
    rows = []
    for sink_id in store.sinks():
        with store.ledger(sink_id) as ledger:
            queries = 0 if ledger is None else len(ledger.known_queries())
            newest = [] if ledger is None else ledger.summaries(1)
        rows.append(
            (
                printable(sink_id),
                count(queries),
                newest[0].query_id if newest else UNKNOWN,
                str(newest[0].batch_id) if newest else UNKNOWN,
                committed(newest[0]) if newest else UNKNOWN,
            )
        )
    print(table("<><><", ("SINK", "QUERIES", "LAST QUERY", "EPOCH", "COMMITTED"), rows))
    return OK


LS = Command(name="ls", help="list the sinks of a store", add_arguments=add_arguments, run=run)
