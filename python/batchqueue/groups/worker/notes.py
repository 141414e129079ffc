"""`Notes`: what happened to a worker, for its metrics, its summary and the log."""

import time

from batchqueue.groups.tracker import RecordCounts


class Notes:
    """Counts of one worker. All of it is used under the lock of the membership.

    Attributes:
        started_ms: When the worker was started, by its own clock.
        started_at: The same in seconds since 1970.
        ended: The counts of partitions that it does not hold any more.
        assigned: Partitions that were assigned.
        lost: Partitions that were lost.
        fenced: Tokens that were refused.
        failed: Attempts that raised.
        late_beats: Heartbeats that were sent after half of the lease.
        lost_records: Records that were trimmed before they were read.
        unfinished: Records in hand when a partition was given up at the end, by partition.
    """

    def __init__(self, now_ms: float) -> None:
        self.started_ms = now_ms
        self._active_at = time.monotonic()
        self.started_at = time.time()
        self.ended = RecordCounts()
        self.assigned = self.lost = self.fenced = self.failed = self.late_beats = 0
        self.lost_records = 0
        self.unfinished: dict[int, int] = {}
        self._logged: dict[str, tuple[float, int]] = {}

    def touch(self) -> None:
        """Note that records were fetched or ended, or a partition was assigned."""
        self._active_at = time.monotonic()

    @property
    def idle_s(self) -> float:
        """Seconds since the last `touch`, whatever the clock of the worker is."""
        return time.monotonic() - self._active_at

    def may_log(self, key: str, now_ms: float, every_s: float) -> int | None:
        """Return how many lines of a kind were left out before this one; None to leave it out.

        Args:
            key: The kind.
            now_ms: The time.
            every_s: Seconds between two lines of the kind.
        """
        last_ms, left_out = self._logged.get(key, (float("-inf"), 0))
        if now_ms - last_ms < every_s * 1_000:
            self._logged[key] = (last_ms, left_out + 1)
            return None
        self._logged[key] = (now_ms, 0)
        return left_out
