"""`ThreadWorkers`: each worker is a number of threads of this process, on a stream in memory."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from batchqueue.cli.demo_groups.flights import PARTITIONS, STREAM
from batchqueue.cli.demo_groups.folder import RunFolder
from batchqueue.cli.demo_groups.journal import Journal
from batchqueue.cli.demo_groups.program import make_worker
from batchqueue.cli.demo_groups.workers import WorkerEndedError
from batchqueue.groups import MemoryStreams, Worker, WorkerSummary

_log = logging.getLogger("batchqueue")


class _RunningWorker:
    """A worker, and the thread that is in its `run`."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, name=worker.name, daemon=True)
        self.thread.start()

    def leave(self, grace: float | None = None) -> WorkerSummary:
        """Let it leave, and wait for its end."""
        summary = self.worker.leave(grace)
        self.thread.join()
        return summary

    def _run(self) -> None:
        try:
            self.worker.run()
        except Exception as error:
            self.error = error


class ThreadWorkers:
    """Workers in threads. When the block ends, so do all that still run.

    A worker that is killed is cut off from the stream: for the group it is a process that died, and
    what it still stores is refused once its successor was there.

    Attributes:
        source: The stream.
    """

    def __init__(self, folder: RunFolder) -> None:
        """Start none yet.

        Args:
            folder: The folder of the run.
        """
        self.source = MemoryStreams(STREAM, partitions=PARTITIONS)
        self._folder = folder
        self._running: dict[str, _RunningWorker] = {}
        self._killed: list[_RunningWorker] = []
        self._handler = logging.FileHandler(folder.log("worker-threads"), delay=True)

    def start(self, name: str) -> None:
        """Start a worker."""
        journal = Journal(self._folder.journal(name))
        worker = make_worker(name, self.source, self._folder.database, journal)
        self._running[name] = _RunningWorker(worker)

    def kill(self, name: str) -> None:
        """Cut a worker off."""
        self.source.crash(name)
        self._killed.append(self._running.pop(name))

    def check(self) -> None:
        """Raise WorkerEndedError if a worker has ended."""
        for name, each in self._running.items():
            if not each.thread.is_alive():
                raise WorkerEndedError(f"{name} ended: {each.error}")

    def leave(self) -> None:
        """Let all leave, concurrently, and wait for their ends.

        Raises:
            WorkerEndedError: One ended with an error, or gave up what it had in hand.
        """
        with ThreadPoolExecutor(len(self._running)) as leavers:
            summaries = list(leavers.map(_RunningWorker.leave, self._running.values()))
        for (name, each), summary in zip(self._running.items(), summaries, strict=True):
            if each.error is not None or summary.unfinished:
                raise WorkerEndedError(f"{name} ended: {each.error or summary}")
        self._running.clear()

    def __enter__(self) -> Self:
        """Let what the workers log go to a file, and return it."""
        _log.addHandler(self._handler)
        _log.propagate = False
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End what still runs; the killed cannot hand over, so they do not wait."""
        for each in (*self._running.values(), *self._killed):
            each.leave(0)
        _log.removeHandler(self._handler)
        _log.propagate = True
        self._handler.close()
