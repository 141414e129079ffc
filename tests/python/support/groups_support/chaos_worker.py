"""A worker process, whose sink is an SQLite file with a fence, a store of metrics, or a topic."""

import faulthandler
import json
import logging
import os
import pickle
import resource
import signal
import sqlite3
import sys
import threading
import time
from contextlib import closing
from dataclasses import asdict

from batchqueue import RetryPolicy, ThreadPolicy
from batchqueue.groups import Fence, MetricsSink, OnGap, Worker
from batchqueue.outputs import SqliteStore
from groups_support.metrics import tally

FENCE = Fence.sql()
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS stored (partition, offset, value, worker, token, at REAL)",
    "CREATE TABLE IF NOT EXISTS calls (worker, partition, token, first, last, began, ended)",
)


def main(settings):
    faulthandler.register(signal.SIGUSR1)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    worker = Worker(
        settings["group"],
        pickle.loads(bytes.fromhex(settings["source"])),
        name=settings["name"],
        retry=RetryPolicy(attempts=3, backoff_ms=20, max_backoff_ms=200),
        on_gap=OnGap.FAIL,
        **{
            "codec": "utf8",
            "grace": 20,
            "max_batch_items": 200,
            **settings["lease"],
            **settings.get("worker", {}),
        },
        threads=ThreadPolicy.fixed(settings["threads"]) if "threads" in settings else None,
    )

    worker.handler_factory(STORES[settings["sink"]](settings))
    threading.Thread(target=listen, args=(worker,), daemon=True).start()
    print(json.dumps(asdict(worker.run())), flush=True)


def with_fence(settings):
    """Stores records in the table `stored`, which a fence guards."""

    def handler_of(assignment):
        # A connection for each partition, used by one thread at a time.
        db, transaction, place = connected(settings)
        insert = f"INSERT INTO stored VALUES ({', '.join([place] * 6)})"

        def store(batch):
            interrupt("before")
            with transaction():
                new = FENCE.new(db, batch)
                about = settings["name"], batch.token, time.time()
                rows = [(batch.partition, each.offset, each.value, *about) for each in new]
                db.cursor().executemany(insert, rows)
                interrupt("inside")
            interrupt("after")
            time.sleep(settings["handler_s"])

        return store

    return handler_of


def connected(settings):
    """Returns a connection to the database, its transactions, and how it marks a value."""
    if "postgres" in settings:
        import psycopg

        db = psycopg.connect(settings["postgres"])
        return db, db.transaction, "%s"
    db = sqlite3.connect(settings["database"], check_same_thread=False, timeout=60)
    return db, lambda: db, "?"


def with_metrics(settings):
    """Counts how often each value comes: L1 here, L2 in the store."""
    sink = MetricsSink(SqliteStore(settings["database"], busy_timeout_s=60), tally)

    def store(batch):
        sink.consume(batch)
        time.sleep(settings["handler_s"])

    return lambda assignment: store


def with_flights(settings):
    """Adds flights to metrics."""
    from groups_support.flights import sink_of

    sink = sink_of(SqliteStore(settings["database"], busy_timeout_s=60), settings["worker"])

    def store(batch):
        sink.consume(batch)
        interrupt("after")
        time.sleep(settings["handler_s"])

    return lambda assignment: store


def with_calls(settings):
    """Stores records at the end of a long call, and when each call began and ended."""

    def handler_of(assignment):
        db, _, _ = connected(settings)

        def store(batch):
            offsets = batch.records[0].offset, batch.last
            call = (settings["name"], batch.partition, batch.token, *offsets, time.time())
            with db:
                number = db.execute("INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?, NULL)", call)
            time.sleep(settings["handler_s"])
            with db:
                about = settings["name"], batch.token, time.time()
                rows = [
                    (batch.partition, each.offset, each.value, *about)
                    for each in FENCE.new(db, batch)
                ]
                db.executemany("INSERT INTO stored VALUES (?, ?, ?, ?, ?, ?)", rows)
                ended = time.time(), number.lastrowid
                db.execute("UPDATE calls SET ended = ? WHERE rowid = ?", ended)

        return store

    return handler_of


def with_topic(settings):
    """Sends records to another topic, in the transaction that commits them."""
    import confluent_kafka

    class Interrupted(confluent_kafka.Producer):
        """Sends a signal to its process before a call."""

        def send_offsets_to_transaction(self, *arguments):
            interrupt("offsets")
            return super().send_offsets_to_transaction(*arguments)

        def commit_transaction(self, *arguments):
            interrupt("commit")
            return super().commit_transaction(*arguments)

    confluent_kafka.Producer = Interrupted

    def send(batch):
        for each in batch.records:
            batch.send(settings["topic"], f"{each.offset} {each.value}", key=batch.partition)
        time.sleep(settings["handler_s"])

    return lambda assignment: send


SIGNALS = {}
"""The signals to send at moments of a handler or of a transaction, each once."""


def interrupt(call):
    number = SIGNALS.pop(call, None)
    if number is not None:
        os.kill(os.getpid(), number)


STORES = {
    "fence": with_fence,
    "metrics": with_metrics,
    "flights": with_flights,
    "calls": with_calls,
    "topic": with_topic,
}


def listen(worker):
    """Obey lines of the standard input.

    `gil SECONDS` holds the interpreter for this long; `disk BYTES` lets no file grow beyond them,
    as a full disk would, and `disk -1` makes room again. `offsets SIGNAL` and `commit SIGNAL` send
    a signal to this process in its next transaction, before that call; `before SIGNAL`,
    `inside SIGNAL` and `after SIGNAL` do so at that moment of the next transaction behind a fence.
    """
    for line in sys.stdin:
        command, value = line.split()
        if command == "gil":
            hold_interpreter(float(value))
        elif command == "disk":
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(value), hard))
        else:
            SIGNALS[command] = int(value)


def hold_interpreter(seconds):
    """Let no other thread of the process run Python code."""
    sys.setswitchinterval(1_000)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    sys.setswitchinterval(0.005)


def make_database(path):
    with closing(sqlite3.connect(path)) as db, db:
        for statement in SCHEMA:
            db.execute(statement)
        db.execute("PRAGMA journal_mode=WAL")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
