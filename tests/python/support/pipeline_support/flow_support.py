"""A controller of pressure whose clock a test moves, and readings for it."""

from batchqueue.pipeline.runner.controller import FlowController
from batchqueue.pipeline.runner.pressure import StageReading
from batchqueue.pipeline.runner.stage_flow import FlowStage
from batchqueue.pipeline.settings import BackpressureConfig

WALL_S = 1_790_000_000.0


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s

    def wall(self):
        return WALL_S + self.now_s


def chain(*names):
    """A source and the stages after it, in a row."""
    return [
        FlowStage(name=name, downstream=names[at + 1 : at + 2], is_source=at == 0)
        for at, name in enumerate(names)
    ]


def reading(lag=0, queue=0, **about):
    return StageReading(lag=lag, queue_rows=queue, **about)


class CheckedFlow:
    """A controller that is checked each half second of its clock."""

    def __init__(self, stages, skew_config=None, **settings):
        self.clock = Clock()
        self.config = BackpressureConfig(**settings)
        self.controller = FlowController(
            stages, self.config, skew_config, self.clock, wall_clock=self.clock.wall
        )

    def check(self, **readings):
        """Check once; an int is a lag, and None is a stage of which nothing is known."""
        self.clock.now_s += self.config.check_interval_s
        self.controller.check(
            {
                name: reading(value) if isinstance(value, int) else value or reading(None, None)
                for name, value in readings.items()
            }
        )
        return self.controller

    def lags(self, stage, *lags):
        """Check once with each lag, and return whether backpressure was active after it."""
        return [
            self.check(**{stage: reading(lag)}).metrics(stage).backpressure_active for lag in lags
        ]
