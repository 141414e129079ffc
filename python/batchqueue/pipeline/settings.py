"""`RunSettings`: what `Pipeline` hands to the runner, in this process or on Spark."""

from dataclasses import dataclass
from typing import Literal, get_args

from batchqueue.base.checks import ABOVE_0, BELOW_1, check_finite, check_switch, check_whole
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
        stage: The settings of stages that are given none; None for the defaults.
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
"""Check intervals after which what was read last counts as not known."""


@dataclass(frozen=True, kw_only=True)
class BackpressureConfig:
    """When a stage is under pressure, and what its signal does.

    The pressure of a stage is the larger of `lag / lag_threshold` and
    `queue / queue_size_threshold`. Backpressure is active above 1, until both the lag and the queue
    are below `release_ratio` of their thresholds.

    Attributes:
        enabled: Whether pressure is computed. Without it nothing is ever slowed down by a signal;
            bounded queues and the limit on bytes still are. Default: True.
        queue_size_threshold: Rows that a stage has accepted and not completed, at least 1. Default:
            1000.
        lag_threshold: Rows that a stage has still to read, at least 1. Default: 5000.
        slow_down_factor_step: The slow-down factor is a multiple of this, from 0.001 to 1. Default:
            0.1.
        release_ratio: The share of both thresholds below which backpressure ends, above 0 and below
            1. The slow-down factor falls from 1 at this share to 0 at the threshold. Default: 0.7.
        early_warning_ratio: The pressure above which a stage warns before backpressure is active,
            above 0 and at most 1. Default: 0.8.
        check_interval_s: Seconds between two checks, at least 0.01. What is older than three of
            them counts as not known. Default: 0.5.
        gate: What the signal does to the sources. "credit": it only informs. Bounded queues hold
            them back, `PushSource` included, and the thresholds by default are less than a fast
            sink handles between two checks; producers outside of the pipeline ask
            `PipelineRun.check_backpressure_before_produce`. "both": sources do not plan on an early
            warning or at a slow-down factor of 0, and else plan as much as their limit times the
            factor. "signal": the same, and they do not plan for as long as backpressure is active.
            Default: "credit".

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
