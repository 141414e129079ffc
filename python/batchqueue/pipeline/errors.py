"""The errors of pipelines. Each message holds the value, the limit and the remedy.

Wrong settings raise `ConfigError` and a missing package `MissingPackageError`, as everywhere in
batchqueue. The errors here can be pickled: they may come from another process. All files of
pipelines may import them, so this file imports none of those.
"""

from batchqueue.exceptions import BatchQueueError


class PipelineError(BatchQueueError, RuntimeError):
    """Base class of the errors of pipelines."""


class GraphError(PipelineError, ValueError):
    """The graph cannot run: a stage without a sink, two stages with one name, a join."""


class StateError(PipelineError):
    """A state machine was to take a step that its table does not have."""


class PositionError(PipelineError, ValueError):
    """A position is not JSON, is too large, or belongs to another source."""


class SourceChangedError(PipelineError):
    """What a position refers to has changed or is gone, so the source cannot continue from it."""


class SourceDataError(PipelineError):
    """Input cannot be read: it is corrupt, unreadable, or does not fit the schema of the source."""


class SourcePickleError(PipelineError, TypeError):
    """A source has to be sent to another process and does not pickle."""


class CutError(PipelineError):
    """The checkpoint and the sinks disagree about which cut was the last one."""


class CheckpointError(PipelineError):
    """A checkpoint is in use, belongs to another pipeline, or cannot be read or written."""


class SinkError(PipelineError):
    """The place of a sink is in use, belongs to another pipeline, or cannot be written."""


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


class OperatorError(PipelineError):
    """An operator raised, or returned something invalid. A run raises `StageFailedError` from it.

    Attributes:
        operator: The operator as the graph declares it, for instance `map(add_country)`.
    """

    def __init__(self, message: str, operator: str = "") -> None:
        super().__init__(message)
        self.operator = operator

    @property
    def cause(self) -> BaseException:
        """What the operator raised; this error if it returned something invalid."""
        return self.__cause__ or self

    def __reduce__(self) -> tuple[type["OperatorError"], tuple[str, str]]:
        return type(self), (str(self), self.operator)
