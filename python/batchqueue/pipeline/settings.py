"""`RunSettings`: what `Pipeline` passes to the runner, in this process or on Spark.

`SparkOptions` holds the options of `Pipeline.on_spark`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import quote

from batchqueue.base.checks import (
    ABOVE_0,
    BELOW_1,
    check_finite,
    check_switch,
    check_whole,
    local_path,
)
from batchqueue.exceptions import ConfigError
from batchqueue.groups.skew import SkewDetectionConfig
from batchqueue.pipeline.graph import Graph, StageConfig, check_name

_LEAST_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, eq=False)
class RunSettings:
    """A graph, and the settings that all of its runs share.

    Attributes:
        name: The name in checkpoints, statistics and logs.
        graph: The sources, operators and sinks. A process has one run of a graph at a time.
        checkpoint: The directory of the last cuts; None for nowhere.
        stage: The settings of stages without their own; None for the defaults.
        backpressure: When stages are under pressure; None for the defaults.
        skew: When partitions are hot; None for the defaults.
        cut_interval_s: Seconds between two cuts.
        max_bytes: The most bytes of data in all stages together.

    Raises:
        ConfigError: A setting is invalid.
    """

    name: str
    graph: Graph
    checkpoint: str | None
    stage: StageConfig | None
    backpressure: "BackpressureConfig | None"
    skew: SkewDetectionConfig | None
    cut_interval_s: float
    max_bytes: int

    def __post_init__(self) -> None:
        check_name(self.name)
        check_finite("cut_interval_s", self.cut_interval_s, 0.1)
        least = f"an int of at least {_LEAST_BYTES}"
        check_whole("max_bytes", self.max_bytes, _LEAST_BYTES, give=least)
        for name, kind in (
            ("stage", StageConfig),
            ("backpressure", BackpressureConfig),
            ("skew", SkewDetectionConfig),
        ):
            given = getattr(self, name)
            if given is not None and not isinstance(given, kind):
                raise ConfigError(f"{name} is {given!r}; give a {kind.__name__}")


Gate = Literal["credit", "signal", "both"]

_GATES: tuple[str, ...] = get_args(Gate)

STALE_INTERVALS = 3
"""Check intervals after which the last reading counts as unknown."""


@dataclass(frozen=True, kw_only=True)
class BackpressureConfig:
    """When a stage is under pressure, and what its signal does.

    The pressure of a stage is the larger of `lag / lag_threshold` and
    `queue / queue_size_threshold`. Backpressure is active above 1, until both the lag and the queue
    are below `release_ratio` of their thresholds.

    Attributes:
        enabled: Whether pressure is computed. If not, signals never slow anything down; bounded
            queues and the byte limit still do. Default: True.
        queue_size_threshold: Rows that a stage has accepted but not completed, at least 1. Default:
            1000.
        lag_threshold: Rows that a stage still has to read, at least 1. Default: 5000.
        slow_down_factor_step: The slow-down factor is a multiple of this, from 0.001 to 1. Default:
            0.1.
        release_ratio: The share of both thresholds below which backpressure ends, above 0 and below
            1. The slow-down factor falls from 1 at this share to 0 at the threshold. Default: 0.7.
        early_warning_ratio: The pressure above which a stage warns before backpressure is active,
            above 0 and at most 1. Default: 0.8.
        check_interval_s: Seconds between two checks, at least 0.01. A reading older than three
            intervals counts as unknown. Default: 0.5.
        gate: How the signal affects the sources. "credit": it only informs. Bounded queues hold the
            sources back, `PushSource` included, and the default thresholds are below what a fast
            sink handles between two checks; producers outside the pipeline call
            `PipelineRun.check_backpressure_before_produce`. "both": sources do not plan on an early
            warning or at a slow-down factor of 0, and otherwise plan up to their limit times the
            factor. "signal": the same, and they do not plan while backpressure is active. Default:
            "credit".

    Raises:
        ConfigError: A setting is invalid; the message names it and its limit.

    Example:
        >>> BackpressureConfig(lag_threshold=20_000).release_ratio
        0.7
    """

    enabled: bool = True
    queue_size_threshold: int = 1_000
    lag_threshold: int = 5_000
    slow_down_factor_step: float = 0.1
    release_ratio: float = 0.7
    early_warning_ratio: float = 0.8
    check_interval_s: float = 0.5
    gate: Gate = "credit"

    def __post_init__(self) -> None:
        check_switch("backpressure: enabled", self.enabled)
        for name in ("queue_size_threshold", "lag_threshold"):
            check_whole(f"backpressure: {name}", getattr(self, name), 1)
        for name, least, most, limits in (
            ("slow_down_factor_step", 0.001, 1, "from 0.001 to 1"),
            ("release_ratio", ABOVE_0, BELOW_1, "above 0 and below 1"),
            ("early_warning_ratio", ABOVE_0, 1, "above 0 and up to 1"),
        ):
            share, remedy = getattr(self, name), f"a number {limits}"
            check_finite(f"backpressure: {name}", share, least, most=most, give=remedy)
        check_finite("backpressure: check_interval_s", self.check_interval_s, 0.01)
        if self.gate not in _GATES:
            raise ConfigError(
                f"backpressure: gate is {self.gate!r}; give 'credit', 'signal' or 'both'"
            )


_MOST_ROWS = 2**40
SINK_OPTIONS = (
    *("l1", "shards", "onNewQuery", "onJobChange", "onMissingEpochs", "onChangedEpoch"),
    "maxCommitBytes",
)
"""Options of the exactly-once sink, see `MetricsWriter`."""


@dataclass(frozen=True, kw_only=True)
class SparkOptions:
    """The settings of a pipeline on Spark.

    Attributes:
        checkpoint: A directory for the checkpoints of all queries; a path of Spark, such as
            "s3a://bucket/revenue". Default: None, `spark` in the checkpoint of the pipeline.
        trigger_ms: Milliseconds between the starts of two epochs. Default: 0, back to back.
        target_epoch_ms: Milliseconds that an epoch should take, 1 to 3,600,000. Default: 2,000.
        first_epoch_rows: Rows of the first epoch after each start. Default: 10,000.
        max_epoch_rows: The most rows of an epoch. Default: 10,000,000.
        max_epoch_bytes: The most bytes of an epoch, as far as the source knows them. Default: 4 GB.
        max_tasks: The most tasks that read an epoch; adjacent splits share a task. Default: None,
            four for each core that Spark has.
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
            ConfigError: An option is invalid or unknown.
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
