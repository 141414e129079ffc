"""Rows that cannot be read or stored: what `AggregationJob.on_bad_row` sets apart in a task."""

import json
import math
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

import pyarrow as pa

from batchqueue.aggregation import Metrics
from batchqueue.base.words import a_type
from batchqueue.exceptions import ConfigError
from batchqueue.outputs.base import BadRows
from batchqueue.outputs.layout import check_storable
from batchqueue.spark.job import AggregationJob, DeadLetters
from batchqueue.spark.requirements import SinkError
from batchqueue.spark.task.arrow import texts_of, unknown_tags
from batchqueue.spark.task.message import decode, encode
from batchqueue.spark.task.unstorable import TextLimits, UnstorableRow, unstorable_by_row

LARGE = 100
"""Rows of a batch that are not all bad by chance."""

_LONGEST_ERROR = 1_000
"""Characters of the error of a bad row that are kept."""


class RowReader:
    """Makes items of the rows of one attempt, and sets apart those that it cannot read.

    Attributes:
        bad_rows: How many rows were set apart.
        first_error: What was wrong with the first of them; None if there is none.
    """

    def __init__(self, job: AggregationJob, sink_id: str, *, checks_tags: bool) -> None:
        """Make a reader.

        Args:
            job: With the rule for such rows.
            sink_id: The sink, whose name counts where keys have a limit.
            checks_tags: Whether rows with an unknown tag fail here, if rows fail.
        """
        self.bad_rows = 0
        self.first_error: str | None = None
        self._dead_letters: dict[str, BadRows] = {}
        self._job = job
        self._sink_id = sink_id
        self._began_at = int(time.time())
        self._type_columns = job.tags_by_column() if checks_tags or job.on_bad_row != "fail" else {}
        self._merged = frozenset(job.metrics) - frozenset(job.handlers)
        self._check_storable = getattr(job.store, "check_storable", _of_any_store)
        self._limits = TextLimits.of(job, sink_id)
        self._steps = () if job.on_bad_row == "fail" else job.arrow
        self._kept = job.on_bad_row if isinstance(job.on_bad_row, DeadLetters) else None

    @property
    def dead_letters(self) -> list[BadRows]:
        """The rows that were set apart, if the job keeps them."""
        return list(self._dead_letters.values())

    def read(self, batch: pa.RecordBatch) -> tuple[Iterable[Any], pa.RecordBatch]:
        """Return the items of a batch of rows, and the rows without those that were set apart.

        The function of the job gets a batch as a whole. If a row of it is bad, it gets the halves,
        down to single rows: with k bad rows of n, at most 2k (1 + log2(n/k)) further calls.

        Raises:
            ConfigError: The function returns something else than items.
            SinkError: A row has a tag that no step names, and the job says that it fails; or there
                are more bad rows than the job keeps, or no others in a large batch that keeps none.
        """
        rows = batch
        for type_column, tags in self._type_columns.items():
            rows = self._with_known_tags(rows, type_column, tags)
        rows = self._with_storable_keys(rows)
        function = self._job.items
        if function is None:
            items: Iterable[Any] = []
        elif self._job.on_bad_row == "fail":
            return _iterable(function(rows)), rows
        else:
            items, rows = self._readable(rows, function)
        if self._kept is None and batch.num_rows >= LARGE and not rows.num_rows:
            raise SinkError(
                f"all {batch.num_rows} rows of a batch are bad, and on_bad_row='skip' would drop "
                "them, so nothing of this epoch is committed: check `items` and the source, or use "
                f"on_bad_row=DeadLetters(), which keeps them; the first error: {self.first_error}"
            )
        return items, rows

    def _readable(
        self, rows: pa.RecordBatch, function: Callable[[pa.RecordBatch], Any]
    ) -> tuple[list[Any], pa.RecordBatch]:
        """Call the function for rows, and for parts of them until all of its errors have a row."""
        items: list[Any] = []
        good: list[pa.RecordBatch] = []
        parts = [rows]
        while parts:
            part = parts.pop()
            try:
                made = function(part)
                # All of them before the first is enqueued: a row that fails leaves none behind.
                found = list(made) if isinstance(made, Iterable) else made
                self._check(found)
            except (MemoryError, NameError, ImportError):
                raise  # no row is to blame
            except Exception as error:
                if part.num_rows == 0:
                    raise
                if part.num_rows == 1:
                    self._set_apart(part, error)
                    continue
                middle = part.num_rows // 2
                parts += [part.slice(middle), part.slice(0, middle)]  # the first half is next
                continue
            items += _iterable(found)
            good.append(part)
        merged = pa.Table.from_batches(good, rows.schema).combine_chunks().to_batches()
        return items, merged[0] if merged else rows.slice(0, 0)

    def _check(self, items: Any) -> None:
        """Check that metrics among the items can be sent and stored; equal ones once."""
        distinct: dict[Any, Metrics] = {}
        for item in items if isinstance(items, list) else ():
            if type(item) in self._merged:
                rows = item.to_rows()
                # Types as well: 1 equals 1.0 and True.
                kinds = tuple(type(value) for row in (item.key, *rows) for value in row)
                distinct[type(item), item.key, *rows, kinds] = item
        if distinct:
            metrics = self._job.metrics
            for stored in decode(encode(distinct.values(), metrics), metrics):
                self._check_storable(stored, self._sink_id)

    def _with_known_tags(
        self, batch: pa.RecordBatch, type_column: str, tags: Collection[str]
    ) -> pa.RecordBatch:
        """Set apart the rows whose tag no step names."""
        unknown = unknown_tags(batch, type_column, tags)
        if not unknown:
            return batch
        if self._job.on_bad_row == "fail":
            raise SinkError(
                f"column {type_column!r} has a row with {unknown[0]!r}, and the steps by it have "
                f"{', '.join(sorted(tags))} only, so nothing of this epoch is committed: name "
                "every tag in one of `arrow`, or leave such rows out with on_bad_row"
            )
        values = texts_of(batch.column(type_column))
        known = [value is not None and str(value) in tags for value in values]
        for number, value in enumerate(values):
            if not known[number]:
                message = (
                    f"column {type_column!r} has {value!r}, which is not a tag of a step: "
                    f"{', '.join(sorted(tags))}"
                )
                self._set_apart(batch.slice(number, 1), UnknownTag(message))
        return batch.filter(pa.array(known))

    def _with_storable_keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Set apart the rows with a key or a text that no declared metric can be stored with."""
        found = unstorable_by_row(batch, self._steps, self._limits)
        if not found:
            return batch
        for number, text in sorted(found.items()):
            self._set_apart(batch.slice(number, 1), UnstorableRow(text))
        return batch.filter(pa.array(number not in found for number in range(batch.num_rows)))

    def storable(self, partials: Iterable[Metrics]) -> list[Metrics]:
        """Return partials of handlers and functions without those whose texts no store could hold.

        Their rows are no longer known, so each stands for one bad row. If rows fail, so will they.
        A number that does not fit is the sum of many rows, and fails whatever the rule is.
        """
        if self._job.on_bad_row == "fail":
            return list(partials)
        kept: list[Metrics] = []
        for partial in partials:
            text = self._limits.wrong_text(partial)
            if text is None:
                kept.append(partial)
            else:
                self._keep(_partial_as_json(partial), UnstorableRow(text))
        return kept

    def _set_apart(self, row: pa.RecordBatch, error: Exception) -> None:
        self._keep(_as_json(row), error)

    def _keep(self, row_json: str, error: Exception) -> None:
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
        kept = BadRows(kind, self._began_at, row_json, text)
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


def _of_any_store(item: Metrics, _sink_id: str) -> None:
    check_storable(item)


def _as_json(row: pa.RecordBatch) -> str:
    # Escapes leave ASCII, which every store can hold.
    try:
        values = {
            name: texts_of(column)[0]
            for name, column in zip(row.schema.names, row.columns, strict=True)
        }
        text = json.dumps(_in_json(values), default=str, allow_nan=False)
    except Exception as error:  # not even Arrow can read it
        text = json.dumps({"unreadable": f"{type(error).__name__}: {error}"})
    return text


def _partial_as_json(partial: Metrics) -> str:
    values = {"metric": partial.name, "entity": partial.entity, "time_bucket": partial.time_bucket}
    return json.dumps(_in_json({**values, "rows": partial.to_rows()}), default=str)


def _in_json(value: Any) -> Any:
    """Return a value with text in place of the numbers that JSON lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _in_json(inner) for key, inner in value.items()}
    return [_in_json(inner) for inner in value] if isinstance(value, list) else value


def _storable(text: str) -> str:
    """Return a text without what some store cannot hold: NUL, and lone surrogates."""
    return text.replace("\0", "\\x00").encode(errors="backslashreplace").decode()
