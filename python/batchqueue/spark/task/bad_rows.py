"""Items of rows, and rows without items: what `AggregationJob.on_bad_row` sets apart in a task."""

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import pyarrow as pa

from batchqueue import ConfigError
from batchqueue._words import a_type
from batchqueue.aggregation import Metrics
from batchqueue.outputs import BadRows
from batchqueue.outputs.layout import check_storable
from batchqueue.spark.errors import SinkError
from batchqueue.spark.job.aggregation_job import AggregationJob
from batchqueue.spark.job.bad_rows import DeadLetters
from batchqueue.spark.task.arrow import unknown_tags

_LONGEST_ERROR = 1_000
"""Characters of the error of a bad row that are kept."""


class RowReader:
    """Makes items of the rows of one attempt, and sets apart those that it cannot read.

    Attributes:
        bad_rows: How many rows were set apart.
        first_error: What was wrong with the first of them; None if there is none.
    """

    def __init__(self, job: AggregationJob, sink_id: str) -> None:
        self.bad_rows = 0
        self._dead_letters: dict[str, BadRows] = {}
        self.first_error: str | None = None
        self._job = job
        self._sink_id = sink_id
        self._began_at = int(time.time())
        self._check_storable = getattr(job.store, "check_storable", _of_any_store)
        self._function: Callable[[pa.RecordBatch], Any] = job.items or _no_items
        self._kept = job.on_bad_row if isinstance(job.on_bad_row, DeadLetters) else None

    @property
    def dead_letters(self) -> list[BadRows]:
        """The rows that were set apart, if the job keeps them."""
        return list(self._dead_letters.values())

    def items(self, batch: pa.RecordBatch) -> Iterable[Any]:
        """Return the items of a batch of rows.

        The function of the job gets a batch as a whole. If a row of it is bad, it gets the halves,
        down to single rows: with k bad rows of n, at most 2k (1 + log2(n/k)) further calls.

        Raises:
            ConfigError: The function returns something else.
            SinkError: There are more bad rows than the job keeps.
        """
        if self._job.on_bad_row == "fail":
            return _iterable(self._function(batch))
        return self._readable(batch)

    def _readable(self, batch: pa.RecordBatch) -> Iterator[Any]:
        try:
            made = self._function(batch)
            # All of them before the first is enqueued: a row that fails leaves none behind.
            items = list(made) if isinstance(made, Iterable) else made
            self._check(items)
        except MemoryError:
            raise
        except Exception as error:
            if batch.num_rows == 0:
                raise  # no row is to blame
            if batch.num_rows == 1:
                self._set_apart(batch, error)
                return
        else:
            yield from _iterable(items)
            return
        middle = batch.num_rows // 2
        yield from self._readable(batch.slice(0, middle))
        yield from self._readable(batch.slice(middle))

    def _check(self, items: Any) -> None:
        """Check that those items which are metrics can be stored; equal ones once."""
        checked: set[Any] = set()
        for item in items if isinstance(items, list) else ():
            if isinstance(item, Metrics):
                identity = (type(item), item.key, *item.to_rows())
                if identity not in checked:
                    checked.add(identity)
                    self._check_storable(item, self._sink_id)

    def with_known_tags(
        self, batch: pa.RecordBatch, type_column: str, tags: Collection[str]
    ) -> pa.RecordBatch:
        """Set apart the rows whose tag no step names.

        Args:
            batch: Rows.
            type_column: The column with the tags.
            tags: The tags of all steps by that column.

        Returns:
            The other rows.

        Raises:
            SinkError: There is such a row, and the job says that it fails; or there are more bad
                rows than the job keeps.
        """
        unknown = unknown_tags(batch, type_column, tags)
        if not unknown:
            return batch
        if self._job.on_bad_row == "fail":
            raise SinkError(
                f"column {type_column!r} has a row with {unknown[0]!r}, and the steps by it have "
                f"{', '.join(sorted(tags))} only, so nothing of this epoch is committed: name "
                "every tag in one of `arrow`, or leave such rows out with on_bad_row"
            )
        values = batch.column(type_column).to_pylist()
        known = [value is not None and str(value) in tags for value in values]
        for number, value in enumerate(values):
            if not known[number]:
                message = (
                    f"column {type_column!r} has {value!r}, which is not a tag of a step: "
                    f"{', '.join(sorted(tags))}"
                )
                self._set_apart(batch.slice(number, 1), UnknownTag(message))
        return batch.filter(pa.array(known))

    def _set_apart(self, row: pa.RecordBatch, error: Exception) -> None:
        self.bad_rows += 1
        kind = _storable(type(error).__name__)
        text = f"{kind}: {_storable(str(error))}"[:_LONGEST_ERROR]
        if self.first_error is None:
            self.first_error = text
        if self._kept is None:
            return
        if self.bad_rows > self._kept.limit:
            raise SinkError(
                f"a task has more bad rows than DeadLetters(limit={self._kept.limit}), so nothing "
                f"of this epoch is committed: check `items` and the source, or raise the limit; "
                f"the first error: {self.first_error}"
            ) from error
        kept = BadRows(kind, self._began_at, _as_json(row), text)
        if kind in self._dead_letters:
            self._dead_letters[kind].combine(kept)
        else:
            self._dead_letters[kind] = kept


class UnknownTag(ValueError):
    """A row has a tag that no step of the job names."""


def _iterable(items: Any) -> Iterable[Any]:
    if not isinstance(items, Iterable):
        raise ConfigError(
            f"items returned {items!r}, {a_type(items)}; it must return the items of the record "
            "batch as a list or another iterable, or be a generator"
        )
    return items


def _no_items(_batch: pa.RecordBatch) -> list[Any]:
    return []


def _of_any_store(item: Metrics, _sink_id: str) -> None:
    check_storable(item)


def _as_json(row: pa.RecordBatch) -> str:
    # Escapes leave ASCII, which every store can hold.
    try:
        (values,) = row.to_pylist()
        text = json.dumps(values, default=str)
    except Exception as error:  # not even Arrow can read it
        text = json.dumps({"unreadable": f"{type(error).__name__}: {error}"})
    return text


def _storable(text: str) -> str:
    """Return a text without what some store cannot hold: NUL, and lone surrogates."""
    return text.replace("\0", "\\x00").encode(errors="backslashreplace").decode()
