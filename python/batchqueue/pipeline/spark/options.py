"""`SparkOptions`: the settings of `Pipeline.on_spark`, checked."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import quote

from batchqueue.base.checks import check_finite, check_whole, local_path
from batchqueue.exceptions import ConfigError

_MOST_ROWS = 2**40
SINK_OPTIONS = (
    *("l1", "shards", "onNewQuery", "onJobChange", "onMissingEpochs", "onChangedEpoch"),
    "maxCommitBytes",
)
"""Options of the exactly-once sink, see `MetricsWriter`."""


@dataclass(frozen=True, kw_only=True)
class SparkOptions:
    """How a pipeline runs on Spark.

    Attributes:
        checkpoint: A directory for the checkpoints of all queries; a path of Spark, such as
            "s3a://bucket/revenue". Default: None, `spark` in the checkpoint of the pipeline.
        trigger_ms: Milliseconds between the beginnings of two epochs. Default: 0, one follows the
            other.
        target_epoch_ms: Milliseconds that an epoch should take, 1 to 3,600,000. Default: 2,000.
        first_epoch_rows: Rows of the first epoch after each start. Default: 10,000.
        max_epoch_rows: The most rows of an epoch. Default: 10,000,000.
        max_epoch_bytes: The most bytes of an epoch, as far as the source knows them. Default: 4 GB.
        max_tasks: The most tasks that read an epoch; neighbouring splits share a task. Default:
            None, four for each core that Spark has.
        control: A directory through which the driver pauses its readers, see `SparkPipeline.pause`.
            Default: None, a temporary one.
        sink: Options of the exactly-once sink: `onNewQuery` and so on, as for `MetricsWriter`.
    """

    checkpoint: str | None = None
    trigger_ms: float = 0
    target_epoch_ms: float = 2_000
    first_epoch_rows: int = 10_000
    max_epoch_rows: int = 10_000_000
    max_epoch_bytes: int = 4 << 30
    max_tasks: int | None = None
    control: str | None = None
    sink: Mapping[str, Any]

    @classmethod
    def parse(cls, options: Mapping[str, Any], pipeline_checkpoint: str | None) -> "SparkOptions":
        """Check the options of `on_spark`.

        Raises:
            ConfigError: An option is invalid or not known.
        """
        own = {field.name for field in fields(cls)} - {"sink"}
        for name in options:
            if name not in own and name not in SINK_OPTIONS:
                meant = get_close_matches(name, [*own, *SINK_OPTIONS], n=1)
                remedy = f"did you mean {meant[0]}?" if meant else "see SparkPipeline"
                raise ConfigError(f"on_spark has no option {name!r}: {remedy}")
        values = {name: value for name, value in options.items() if name in own}
        if values.get("checkpoint") is None and pipeline_checkpoint is not None:
            # A path and not a URL: Spark resolves relative ones against the JVM's directory.
            values["checkpoint"] = str(Path(pipeline_checkpoint, "spark"))
        sink = {name: value for name, value in options.items() if name in SINK_OPTIONS}
        return cls(**values, sink=sink)

    def checkpoint_of(self, query: str) -> str | None:
        """Return the checkpoint of the query of a sink; None if there is none."""
        if self.checkpoint is None:
            return None
        return f"{self.checkpoint.rstrip('/')}/{quote(query, safe='')}"

    def __post_init__(self) -> None:
        check_finite("trigger_ms", self.trigger_ms, 0)
        check_finite("target_epoch_ms", self.target_epoch_ms, 1)
        for name in ("first_epoch_rows", "max_epoch_rows", "max_epoch_bytes", "max_tasks"):
            is_optional = name == "max_tasks"
            check_whole(name, getattr(self, name), 1, _MOST_ROWS, is_optional=is_optional)
        if not (self.checkpoint is None or (isinstance(self.checkpoint, str) and self.checkpoint)):
            raise ConfigError(f"checkpoint is {self.checkpoint!r}; give the path of a directory")
        if self.control is not None:
            control = local_path("control", self.control, "give a folder that all machines mount")
            if not control.is_dir():
                raise ConfigError(f"control is {self.control!r}, which is not a directory; make it")
            object.__setattr__(self, "control", str(control))
