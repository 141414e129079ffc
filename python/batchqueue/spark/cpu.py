"""Where the CPU time of a process goes: into drain threads, or into the rest."""

import time

from batchqueue.spark.summary import CpuSummary


class CpuMeter:
    """Measures from its making on, for a process that runs one attempt or commit at a time.

    The commits of two queries that a driver runs at once have the CPU time of each other in theirs.
    """

    def __init__(self) -> None:
        self._cpu_s = time.process_time()
        self._wall_s = time.monotonic()

    def read(self, drain_cpu_s: float) -> CpuSummary:
        """Return the time since the start, split.

        Args:
            drain_cpu_s: CPU seconds that drain threads took, as the queues counted them.
        """
        cpu_s = time.process_time() - self._cpu_s
        return CpuSummary(drain_cpu_s, cpu_s - drain_cpu_s, time.monotonic() - self._wall_s)
