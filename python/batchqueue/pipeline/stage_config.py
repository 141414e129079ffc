"""`StageConfig`: how the stages of a pipeline run."""

from dataclasses import dataclass

from batchqueue.exceptions import ConfigError

MAX_WORKERS = 1_024
MAX_CHUNK_ROWS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class StageConfig:
    """How a stage runs: how many workers it has, and how large its chunks are.

    Attributes:
        partition_count: Partitions of the stage, 1 to 1024: those that the keys of `key_by` are
            hashed to, and the most workers of any stage, since each needs one. Default: None, one
            per worker.
        min_workers: The least workers that a stage of operators may have, at most `max_workers` and
            `partition_count`: a graph that gives one fewer is refused. Default: 1.
        max_workers: The workers of a stage whose first step names no other number, 1 to 1024: each
            is a thread with its own instances of the operators. More than one needs operators that
            may run concurrently. Sinks, and aggregations without a key, have one. Default: 1.
        chunk_rows: The most rows of a chunk, 1 to 1,000,000. Chunks also stay below 1 MB, except
            for a single row that is larger. On Spark, see `Pipeline(stage=...)`. Default: 500.
        keep_order: Whether several workers keep the order of each partition of the source, by
            sending all its chunks to one worker. Default: False, chunks go to any worker.

    Raises:
        ConfigError: A number is out of range; the message names the setting and its limit.
    """

    partition_count: int | None = None
    min_workers: int = 1
    max_workers: int = 1
    chunk_rows: int = 500
    keep_order: bool = False

    def __post_init__(self) -> None:
        check_count("max_workers", self.max_workers, MAX_WORKERS)
        check_count("min_workers", self.min_workers, self.max_workers)
        check_count("chunk_rows", self.chunk_rows, MAX_CHUNK_ROWS)
        if self.partition_count is not None:
            check_count("partition_count", self.partition_count, MAX_WORKERS)
            if self.partition_count < self.min_workers:
                raise ConfigError(
                    f"partition_count is {self.partition_count} and min_workers "
                    f"{self.min_workers}; give each worker a partition"
                )
        if not isinstance(self.keep_order, bool):
            raise ConfigError(f"keep_order is {self.keep_order!r}; give True or False")

    @property
    def workers(self) -> int:
        """The workers of a stage that is given no other number: each has a partition."""
        return min(self.max_workers, self.partition_count or self.max_workers)


def check_count(name: str, value: object, most: int) -> None:
    """Refuse what is not an int from 1 to `most`.

    Raises:
        ConfigError: It is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ConfigError(f"{name} is {value!r}; give an int from 1 to {most}")
