"""`Feed`: the thread that produces the flights, not faster than the demo can be watched."""

import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from batchqueue.cli.demo_groups.flights import CODEC, Flight, carrier_of
from batchqueue.cli.demo_job import COLUMNS, FlightFiles
from batchqueue.groups.backend import StreamSource
from batchqueue.groups.producer import Producer

_LEAST_S = 6.0
"""The time over which few flights are spread, so that some of them come after each change."""

_LARGEST_BLOCK = 1_000
_LEAST_BLOCKS = 100


class Feed:
    """Produces the flights in a thread, up to a limit which rises as the demo advances.

    Attributes:
        total: The number of flights.
        error: Why it ended early; None if it did not.
    """

    def __init__(self, source: StreamSource, files: FlightFiles) -> None:
        """Start nothing yet.

        Args:
            source: The stream.
            files: The flights.
        """
        self.total = files.total_rows
        self.error: Exception | None = None
        self._source = source
        self._files = files
        self._limit = 0
        self._is_stopped = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="demo-feed", daemon=True)

    def start(self) -> None:
        """Begin to produce."""
        self._thread.start()

    def allow(self, share: float) -> None:
        """Let it produce a share of the flights, 0 to 1; before the first call it waits."""
        with self._changed:
            self._limit = round(share * self.total)
            self._changed.notify_all()

    def stop(self) -> None:
        """End it, and wait for its end."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            with Producer(self._source, codec=CODEC, key=carrier_of) as producer:
                self._produce(producer)
        except Exception as error:
            self.error = error

    def _produce(self, producer: Producer) -> None:
        block = max(1, min(_LARGEST_BLOCK, self.total // _LEAST_BLOCKS))
        sent, next_at = 0, time.monotonic()
        for flights in read_flights(self._files, block):
            if not self._may_send(sent + len(flights), next_at):
                return
            # What a limit held up is not made up for: the rest is spread as well.
            next_at = time.monotonic() + _LEAST_S * len(flights) / self.total
            producer.send_many(flights)
            sent += len(flights)

    def _may_send(self, sent: int, at: float) -> bool:
        """Wait for a time and for the limit; return whether to continue."""
        with self._changed:
            while not self._is_stopped:
                left = at - time.monotonic()
                if sent <= self._limit and left <= 0:
                    return True
                self._changed.wait(left if left > 0 else None)
        return False


def read_flights(files: FlightFiles, most: int) -> Iterator[list[Flight]]:
    """Yield all flights in the order of the files, in lists of at most `most`."""
    for path in sorted(files.directory.glob("*.parquet")):
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=most, columns=list(COLUMNS)):
                yield _flights(batch)


def _flights(batch: pa.RecordBatch) -> list[Flight]:
    hours = pc.cast(pc.cast(batch["time_hour"], pa.timestamp("s", "UTC")), pa.int64())
    position = batch.schema.get_field_index("time_hour")
    flights: list[Flight] = batch.set_column(position, "time_hour", hours).to_pylist()
    return flights
