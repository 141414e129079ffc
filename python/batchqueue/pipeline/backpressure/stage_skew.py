"""`StageSkew`: which partitions of a stage are hot, decided by `batchqueue.groups.skew`."""

from collections.abc import Mapping
from typing import cast

from batchqueue.groups.skew import (
    PartitionReading,
    SkewDetectionConfig,
    SkewDetector,
    SkewReport,
    skew_report,
    skew_warning,
)
from batchqueue.pipeline.backpressure.readings import Partition, PartitionProgress
from batchqueue.pipeline.backpressure.states import SkewState, StateMachine


class StageSkew:
    """Takes a reading of the partitions of a stage now and then, and moves its state machine."""

    def __init__(
        self, stage: str, config: SkewDetectionConfig, machine: StateMachine[SkewState]
    ) -> None:
        """Begin without hot partitions."""
        self.machine = machine
        self._stage = stage
        self._config = config
        self._detector = SkewDetector(config)
        self._readings: list[PartitionReading] = []
        self._next_at = float("-inf")

    @property
    def hot(self) -> frozenset[Partition]:
        """The partitions that are hot after the last reading."""
        return frozenset(self._detector.hot)

    def check(self, partitions: Mapping[Partition, PartitionProgress], now: float) -> None:
        """Take a reading, if it is time for one.

        Args:
            partitions: All partitions of the stage.
            now: The time, in seconds.
        """
        # Two readings in a row count only if there is time for a change between them.
        if not (self._config.enabled and partitions) or now < self._next_at:
            return
        self._next_at = now + self._config.check_interval_s
        self._readings = readings_of(partitions)
        self._detector.update(self._readings)
        self._advance(any(each.lag is not None for each in self._readings))

    def line(self) -> str:
        """Return the line for the log that says which partitions are hot."""
        hot = [each for each in self._readings if each.partition in self._detector.hot]
        if not hot:
            return f"Partition skew ended in {self._stage}"
        return skew_warning(self._stage, skew_report(self._readings, self._config), hot)

    def _advance(self, is_known: bool) -> None:
        path = [] if self.machine.state is SkewState.MONITORING else [SkewState.MONITORING]
        path.append(SkewState.COLLECTING_METRICS)
        if not is_known:
            path.append(SkewState.MONITORING)
        elif self._detector.hot:
            path += [SkewState.CALCULATING_LAG, SkewState.SKEW_DETECTED]
            path += [SkewState.LOGGING_ALERT, SkewState.MITIGATING]
        else:
            path += [SkewState.CALCULATING_LAG, SkewState.NO_SKEW]
        self.machine.advance(*path)


def report_of(
    partitions: Mapping[Partition, PartitionProgress], config: SkewDetectionConfig
) -> SkewReport:
    """Return the figures of the lags of a stage."""
    return skew_report(readings_of(partitions), config)


def readings_of(partitions: Mapping[Partition, PartitionProgress]) -> list[PartitionReading]:
    """Return partitions as the detector takes them."""
    return [
        PartitionReading(
            # The detector compares partitions with each other only, so names will do as well.
            partition=cast(int, partition),
            lag=progress.lag,
            rate_per_s=progress.rate_per_s,
            owner=progress.owner,
            seconds=progress.seconds,
        )
        for partition, progress in partitions.items()
    ]
