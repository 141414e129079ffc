"""Rows for handlers, and handlers that write their batches where any process can read them."""

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchqueue.spark import TaskInfo

SCHEMA = "id long, kind string"
FILES = 4
ROWS_PER_FILE = 300
KINDS = ("order", "refund", "visit")


def kind_of(number: int) -> str:
    return KINDS[number * number % 7 % 3]


ROWS = {number: kind_of(number) for number in range(FILES * ROWS_PER_FILE)}
"""The content of all files."""


def write_rows(directory: Path) -> Path:
    """Write the rows as parquet files, each of them an epoch where one file is read at a time."""
    directory.mkdir(parents=True)
    for file in range(FILES):
        ids = range(file * ROWS_PER_FILE, (file + 1) * ROWS_PER_FILE)
        rows = [{"id": number, "kind": ROWS[number]} for number in ids]
        path = directory / f"part-{file}.parquet"
        pq.write_table(pa.Table.from_pylist(rows), path)
        # Spark reads the oldest first; files of one millisecond have no order.
        os.utime(path, (file, file))
    return directory


@dataclass(frozen=True)
class Batch:
    """One call of `consume`."""

    handler: str
    kinds: tuple[str, ...]
    ids: tuple[int, ...]
    query_id: str | None
    epoch: int | None
    partition: int
    attempt: str


class Recorder:
    """Writes each batch of rows, and that it was closed, into its own file."""

    def __init__(self, directory: Path, name: str, task: TaskInfo) -> None:
        directory.mkdir(exist_ok=True)
        self._name = name
        self._task = task
        self._file = (directory / f"{task.attempt}-{name}.jsonl").open("a")

    def consume(self, batch: list[pa.RecordBatch]) -> None:
        rows = pa.Table.from_batches(batch)
        self.write(rows.column("kind").to_pylist(), rows.column("id").to_pylist())

    def write(self, kinds: list[str], ids: list[int]) -> None:
        line = {"handler": self._name, "kinds": kinds, "ids": ids, **asdict(self._task)}
        print(json.dumps(line), file=self._file, flush=True)

    def on_close(self) -> None:
        print("closed", file=self._file)
        self._file.close()


def recorders(directory: Path) -> Callable[[TaskInfo], dict[str, Recorder]]:
    """Handlers for all kinds, as tags."""
    return lambda task: {kind: Recorder(directory, kind, task) for kind in KINDS}


def read(directory: Path) -> list[Batch]:
    """All batches, in the order of each handler, which must have been closed after the last."""
    batches = []
    for file in sorted(directory.glob("*.jsonl")):
        *lines, last = file.read_text().splitlines()
        assert last == "closed"
        for line in map(json.loads, lines):
            batches.append(
                Batch(**{**line, "kinds": tuple(line["kinds"]), "ids": tuple(line["ids"])})
            )
    return batches


def delivered(batches: list[Batch]) -> list[tuple[int, str]]:
    """Rows, as often as they came, with the handler that got each."""
    return sorted((number, batch.handler) for batch in batches for number in batch.ids)


def by_handler(batches: list[Batch]) -> dict[tuple[str, str], list[int]]:
    """The ids that each handler of each attempt got, in its order."""
    found: dict[tuple[str, str], list[int]] = {}
    for batch in batches:
        found.setdefault((batch.attempt, batch.handler), []).extend(batch.ids)
    return found


class Once:
    """True for the first call in any process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self) -> bool:
        try:
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class KeyedWriter:
    """An idempotent handler: a row's key is its position, written once. It commits each batch."""

    def __init__(self, database: Path, kind: str, task: TaskInfo) -> None:
        self._database = database
        self._kind = kind
        self._key = (task.query_id, task.epoch, task.partition)
        self._position = 0

    def consume(self, batch: list[pa.RecordBatch]) -> None:
        ids = pa.Table.from_batches(batch).column("id").to_pylist()
        rows = [
            (*self._key, self._kind, self._position + offset, number)
            for offset, number in enumerate(ids)
        ]
        with closing(sqlite3.connect(self._database, timeout=60)) as connection, connection:
            connection.executemany("INSERT OR IGNORE INTO rows VALUES (?, ?, ?, ?, ?, ?)", rows)
        self._position += len(ids)


def create_keyed(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(
            "CREATE TABLE rows (query, epoch, part, kind, position, id,"
            " PRIMARY KEY (query, epoch, part, kind, position))"
        )


def read_keyed(database: Path) -> list[tuple[int, str]]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute("SELECT id, kind FROM rows ORDER BY id").fetchall()


class Order(int):
    """An item: the id of a row of this kind."""


class Refund(int): ...


class Visit(int): ...


CLASSES: Mapping[str, type] = dict(zip(KINDS, (Order, Refund, Visit), strict=True))


def items(batch: pa.RecordBatch) -> Iterator[Any]:
    for number, kind in zip(
        batch.column("id").to_pylist(), batch.column("kind").to_pylist(), strict=True
    ):
        yield CLASSES[kind](number)


class ItemRecorder(Recorder):
    """The same for items."""

    def consume(self, batch: list[Any]) -> None:
        self.write([type(item).__name__.lower() for item in batch], [int(item) for item in batch])


def item_recorders(directory: Path) -> Callable[[TaskInfo], dict[type, ItemRecorder]]:
    """Handlers for all kinds, as classes."""
    return lambda task: {CLASSES[kind]: ItemRecorder(directory, kind, task) for kind in KINDS}
