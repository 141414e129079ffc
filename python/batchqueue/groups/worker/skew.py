"""`SkewWatch`: partitions of a worker that lag behind its others get twice the credits."""

from typing import TYPE_CHECKING

from batchqueue._background_log import BackgroundLog
from batchqueue.groups.skew import (
    PartitionReading,
    SkewDetectionConfig,
    SkewDetector,
    skew_report,
    skew_warning,
)

if TYPE_CHECKING:
    from batchqueue.groups.worker.membership import Membership

_log = BackgroundLog("batchqueue")


class SkewWatch:
    """Reads the lags now and then, and warns when a partition has become hot.

    All of it is used under the lock of the membership.
    """

    def __init__(self, config: SkewDetectionConfig) -> None:
        """Begin without hot partitions."""
        self._config = config
        self._detector = SkewDetector(self._config)
        self._next_ms = float("-inf")

    @property
    def hot(self) -> frozenset[int]:
        """The partitions that are hot after the last reading."""
        return self._detector.hot

    def watch(self, member: "Membership") -> None:
        """Take a reading, if it is time for one."""
        now = member.now_ms()
        if now < self._next_ms:
            return
        self._next_ms = now + self._config.check_interval_s * 1_000
        loads = member.load.measure(list(member.held), now)
        readings = [
            PartitionReading(
                partition=number,
                lag=lag,
                rate_per_s=loads[number].rate if number in loads else None,
                owner=member.control.name,
            )
            for number, lag in member.lags.items()
        ]
        before = self._detector.hot
        hot = self._detector.update(readings)
        for number, held in member.held.items():
            if held.tracker is not None:
                factor = 2 if number in hot else 1
                held.tracker.prefetch = factor * member.settings.prefetch
                held.tracker.prefetch_bytes = factor * member.settings.prefetch_bytes
        if hot - before:
            named = [each for each in readings if each.partition in hot]
            report = skew_report(readings, self._config)
            _log.warning("%s", skew_warning(member.stream, report, named))
