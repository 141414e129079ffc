"""`Workers`: what the conductor does with workers, be they processes or threads."""

from typing import Protocol

from batchqueue.exceptions import BatchQueueError


class WorkerEndedError(BatchQueueError):
    """A worker of the demo ended too early."""


class Workers(Protocol):
    """The workers of a run."""

    def start(self, name: str) -> None:
        """Let a worker join."""
        ...

    def kill(self, name: str) -> None:
        """End a worker without any notice."""
        ...

    def check(self) -> None:
        """Raise WorkerEndedError if a worker has ended that was not killed."""
        ...

    def leave(self) -> None:
        """Let all workers finish, commit and leave."""
        ...
