"""The results of tasks as Spark carries them to the commit."""

from dataclasses import dataclass
from typing import cast

from pyspark.sql.datasource import WriterCommitMessage

from batchqueue.spark.task.message import AttemptMessage


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """An attempt's message as Spark wants it."""

    message: AttemptMessage


def attempts(messages: list[WriterCommitMessage | None]) -> list[AttemptMessage]:
    """Return what the tasks sent."""
    # Every task has succeeded when Spark commits; None, for one that failed, is for `abort` only.
    return [cast(TaskMessage, one).message for one in messages]
