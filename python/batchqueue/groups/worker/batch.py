"""`Batch`: what a handler gets."""

from collections.abc import Sequence
from typing import Any

from batchqueue._words import counted
from batchqueue.exceptions import ConfigError
from batchqueue.groups.messages import Command
from batchqueue.groups.record import Assignment, Record


class Batch:
    """Records of one partition, in the order of their offsets.

    A batch is made for one attempt: another attempt at the same records gets another batch.

    Attributes:
        group: The group of the worker.
        stream: The stream.
        assignment: The assignment of the partition.
        records: The records, at least one.
        kind: The first class or tag that its handler takes; empty for a handler of all records.
        attempt: 1 in the first attempt at these records.
    """

    __slots__ = (
        "_commands",
        "_values",
        "assignment",
        "attempt",
        "group",
        "kind",
        "records",
        "stream",
    )

    def __init__(
        self,
        group: str,
        stream: str,
        assignment: Assignment,
        records: list[Record[Any]],
        *,
        attempt: int = 1,
        kind: str = "",
    ) -> None:
        self.group = group
        self.stream = stream
        self.assignment = assignment
        self.records = records
        self.attempt = attempt
        self.kind = kind
        self._values: list[Any] | None = None
        self._commands: list[Command] = []

    @property
    def partition(self) -> int:
        """The number of the partition, from 0."""
        return self.assignment.partition

    @property
    def token(self) -> int:
        """The token of the assignment: a sink should refuse those below the largest it has seen."""
        return self.assignment.token

    @property
    def first(self) -> int:
        """The offset of the first record."""
        return self.records[0].offset

    @property
    def last(self) -> int:
        """The offset of the last record."""
        return self.records[-1].offset

    @property
    def values(self) -> list[Any]:
        """The values of the records."""
        if self._values is None:
            self._values = [record.value for record in self.records]
        return self._values

    @property
    def commands(self) -> tuple[Command, ...]:
        """What `commit_with` was given."""
        return tuple(self._commands)

    def commit_with(self, *commands: Sequence[bytes | str | int]) -> None:
        """Let the server run commands in the script that stores the offset of this batch.

        They run if this attempt returns, in order, and not at all if the partition was lost. On
        Redis their keys must be in the slot of the partition: make them with `key`. A command that
        fails there ends the script after those before it, and the partition waits until the rest
        has run; under `OnFailure.STOP` the worker stops after the last attempt.

        Args:
            commands: Each a sequence of its name and its arguments.

        Raises:
            ConfigError: A command is not a sequence of bytes, str and int, or it is empty.
        """
        for command in commands:
            if (
                isinstance(command, (str, bytes))
                or not command
                or not all(isinstance(word, (bytes, str, int)) for word in command)
            ):
                raise ConfigError(
                    f"commit_with got {command!r}; give commands as sequences of bytes, str and "
                    'int, for instance ("INCRBY", batch.key("total"), 5)'
                )
        self._commands += [tuple(command) for command in commands]

    def key(self, name: str) -> str:
        """Return a key for `commit_with`, in the slot of the partition on a Redis cluster."""
        return f"bq:{{{self.stream}/{self.partition}}}:{name}"

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.records)

    def __repr__(self) -> str:
        """Say which records it holds."""
        return (
            f"<Batch {self.stream}/{self.partition} offsets {self.first}..{self.last}, "
            f"{counted(len(self.records), 'record')}, attempt {self.attempt}>"
        )
