"""The messages of tasks in the form in which Spark carries them to the commit."""

from dataclasses import dataclass
from typing import cast

from pyspark.sql.datasource import WriterCommitMessage

from batchqueue.spark.task.message import AttemptMessage


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """The message of the successful attempt of a task."""

    message: AttemptMessage


def attempt_messages(messages: list[WriterCommitMessage | None]) -> list[AttemptMessage]:
    """Return what the tasks sent."""
    # Every task has succeeded when Spark commits. None, for a failed task, reaches `abort` only.
    return [cast(TaskMessage, message).message for message in messages]
