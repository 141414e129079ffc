"""The errors of pipelines. Each message holds the value, the limit and the remedy.

Wrong settings raise `ConfigError` and a missing package `MissingPackageError`, as everywhere in
batchqueue. The errors here can be pickled: they may come from another process.
"""

from batchqueue.exceptions import BatchQueueError


class PipelineError(BatchQueueError, RuntimeError):
    """Base class of the errors of pipelines."""


class GraphError(PipelineError, ValueError):
    """The graph cannot run: a stage without a sink, two stages with one name, a join."""


class PositionError(PipelineError, ValueError):
    """A position is not JSON, is too large, or belongs to another source."""


class SourceChangedError(PipelineError):
    """What a position refers to has changed or is gone, so the source cannot continue from it."""


class SourcePickleError(PipelineError, TypeError):
    """A source has to be sent to another process and does not pickle."""


class CutError(PipelineError):
    """The checkpoint and the sinks disagree about which cut was the last one."""


class StageFailedError(PipelineError):
    """An operator or a sink raised. The run has ended; the checkpoint is that of the last cut.

    Its `__cause__` is the first error.

    Attributes:
        stage: The name of the stage.
        position: Where the chunk that failed came from, for the message; None if not known.
    """

    def __init__(self, message: str, stage: str = "", position: str | None = None) -> None:
        super().__init__(message)
        self.stage = stage
        self.position = position

    def __reduce__(self) -> tuple[type["StageFailedError"], tuple[str, str, str | None]]:
        return type(self), (str(self), self.stage, self.position)


class NotOnSparkError(PipelineError):
    """A part of the graph does not run on Spark. The message names it and what to use instead."""
