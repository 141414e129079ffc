"""`BadRows`: rows that a job could not read, as a metric that the stores keep beside the others."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Self

from batchqueue.aggregation import Metrics
from batchqueue.aggregation.metrics import Row


class BadRow(NamedTuple):
    """A row that could not be read.

    Attributes:
        row_json: Its columns as a JSON object. What JSON does not have is there as text.
        error: Class and message of what was raised.
    """

    row_json: str
    error: str


class BadRows(Metrics):
    """The rows that a job could not read, of one kind of error and one second.

    A Spark job with `on_bad_row=DeadLetters()` writes them under the name "bad_rows" into its
    sink. The entity is the class of the error, such as "ValueError", and the time bucket is the
    second in which the task began, because the row has no time that could be trusted.

    Example:
        >>> from batchqueue.outputs import SqliteStore
        >>> store = SqliteStore("metrics.db")
        >>> with store.transaction("orders") as transaction:
        ...     row = BadRows("ValueError", 1_700_000_000, '{"cents": "x"}', "ValueError: 'x'")
        ...     transaction.merge([row])
        >>> for errors in store.read(BadRows, "orders"):
        ...     print(errors.entity, *errors.rows[0])
        ValueError {"cents": "x"} ValueError: 'x'
    """

    __slots__ = ("_rows",)
    name = "bad_rows"
    table = "bad_rows"
    columns: ClassVar = {"row_json": str, "error": str}
    multi_row = True

    def __init__(self, entity: str, time_bucket: int, row_json: str, error: str) -> None:
        """Start with a single row.

        Args:
            entity: Class of the error.
            time_bucket: When the task began, in whole seconds since the epoch, UTC.
            row_json: Its columns as a JSON object.
            error: Class and message of the error.
        """
        self.key = (entity, time_bucket)
        self._rows = [BadRow(row_json, error)]

    @property
    def rows(self) -> list[BadRow]:
        """The rows, in the order of their text; equal rows are there as often as they occurred."""
        return sorted(self._rows)

    def combine(self, other: Self) -> None:
        """Take the rows of `other` into this one."""
        self._rows.extend(other._rows)

    def to_rows(self) -> list[Row]:
        """Return a row of value columns for each row."""
        return list(self.rows)

    @classmethod
    def from_rows(cls, entity: str, time_bucket: int, rows: Sequence[Row]) -> Self:
        """Rebuild what `to_rows` wrote."""
        made = cls(entity, time_bucket, "", "")
        made._rows = [BadRow(*row) for row in rows]
        return made
