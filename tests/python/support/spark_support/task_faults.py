"""Faults in tasks, which travel to the executors by value."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

import batchqueue
from batchqueue.aggregation import Metrics
from batchqueue.outputs import ParquetStore, StoreTransaction
from spark_support import flight_job
from spark_support.notes import Notes
from spark_support.waits import parent, wait_until


def executor() -> int:
    """Return the process id of the JVM whose Python daemon forked this worker."""
    return parent(os.getppid())


def task() -> dict[str, int]:
    """Return what identifies a task of a stream; its attempts have the same value."""
    context = TaskContext.get()
    assert context is not None
    return {
        "epoch": int(context.getLocalProperty("streaming.sql.batchId") or 0),
        "partition": context.partitionId(),
    }


class NoFault:
    """Changes nothing. Every attempt notes the half of its rows, and the end of `write()`."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def in_mid_task(self) -> None: ...

    def at_end(self) -> None: ...

    def items(self, batch: pa.RecordBatch) -> Iterator[Metrics]:
        half = batch.num_rows // 2
        yield from flight_job.items(batch.slice(0, half))
        self.note("half")
        self.in_mid_task()
        yield from flight_job.items(batch.slice(half))

    def write(
        self, writer: DataSourceStreamArrowWriter, rows: Iterator[pa.RecordBatch]
    ) -> WriterCommitMessage:
        message = writer.write(rows)
        self.note("end")
        self.at_end()
        return message

    def note(self, kind: str) -> None:
        self.notes.write(
            kind, **task(), executor=executor(), worker=os.getpid(), package=batchqueue.__file__
        )

    def once(self, kind: str) -> bool:
        """Return whether this is the first attempt to do this, and note it if so."""
        first = self.notes.first(kind)
        if first:
            self.note(kind)
        return first


class ExecutorDiesInMidTask(NoFault):
    def in_mid_task(self) -> None:
        if self.once("kill"):
            os.kill(executor(), signal.SIGKILL)


class ExecutorDiesAtTheEnd(NoFault):
    """The sink has finished its part of the task, but Spark has not been notified."""

    def at_end(self) -> None:
        if self.once("kill"):
            os.kill(executor(), signal.SIGKILL)
            threading.Event().wait()  # until the daemon misses its executor, and so ends


class WorkerDiesInMidTask(NoFault):
    def in_mid_task(self) -> None:
        if self.once("kill"):
            os.kill(os.getpid(), signal.SIGKILL)


class WorkerHangsInMidTask(NoFault):
    def in_mid_task(self) -> None:
        if self.once("hang"):
            threading.Event().wait()


class TwoAttemptsFinish(NoFault):
    """Spark starts a second attempt of a slow task; neither returns before both are done."""

    def at_end(self) -> None:
        mine = task()
        if mine == {"epoch": 0, "partition": 0}:
            wait_until(
                lambda: len(self.notes.read("end", **mine)) == 2, "the other attempt of this task"
            )


class WaitsInTheSecondEpoch(NoFault):
    def in_mid_task(self) -> None:
        if task()["epoch"] == 1 and self.once("wait"):
            threading.Event().wait()


FAULTS: dict[str, type[NoFault]] = {
    kind.__name__: kind
    for kind in (
        NoFault,
        ExecutorDiesInMidTask,
        ExecutorDiesAtTheEnd,
        WorkerDiesInMidTask,
        WorkerHangsInMidTask,
        TwoAttemptsFinish,
        WaitsInTheSecondEpoch,
    )
}


class BothAttemptsCommit(ParquetStore):
    """Two attempts of a task commit shard 0: they begin together, and return once both are done."""

    def __init__(self, directory: str, notes: Notes) -> None:
        super().__init__(directory)
        self.notes = notes

    @contextmanager
    def transaction(self, sink_id: str = "default") -> Iterator[StoreTransaction]:
        here = sink_id.endswith("/0") and TaskContext.get() is not None
        if here:
            self._meet("begin")
        with super().transaction(sink_id) as transaction:
            yield transaction
        if here:
            self._meet("end")

    def _meet(self, kind: str) -> None:
        self.notes.write(kind, executor=executor(), worker=os.getpid())
        wait_until(lambda: len(self.notes.read(kind)) == 2, "the other attempt of this task")


class FaultyWriter(DataSourceStreamArrowWriter):
    """The sink's own writer, with a fault at the end of `write()`."""

    def __init__(self, writer: Any, fault: NoFault) -> None:
        self._writer = writer
        self._fault = fault

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._fault.write(self._writer, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._writer.commit(messages, batchId)
