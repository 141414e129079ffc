"""Rows that cannot be read or stored, which `AggregationJob.on_bad_row` sets apart in a task."""

import json
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute

from batchqueue.aggregation import Max, Metrics, Min
from batchqueue.aggregation.metrics import ESCAPE, SEPARATOR
from batchqueue.base.words import a_type
from batchqueue.exceptions import ConfigError
from batchqueue.outputs.base import BadRows
from batchqueue.outputs.layout import check_storable
from batchqueue.spark.job import AggregationJob, DeadLetters
from batchqueue.spark.requirements import SinkError
from batchqueue.spark.steps import ArrowAggregation, ArrowStep
from batchqueue.spark.task.arrow import plain, texts_of, unknown_tags
from batchqueue.spark.task.groups import check_not_null
from batchqueue.spark.task.message import decode, encode

LARGE = 100
"""The size of a batch, in rows, from which on its rows are not all bad by chance."""

_LONGEST_ERROR = 1_000
"""The most characters that are kept of a bad row's error."""


class RowReader:
    """Turns the rows of one attempt into items, and sets apart those that it cannot read.

    Attributes:
        bad_rows: How many rows were set apart.
        first_error: What was wrong with the first bad row; None if there is none.
    """

    def __init__(self, job: AggregationJob, sink_id: str, *, checks_tags: bool) -> None:
        """Make a reader.

        Args:
            job: The job, with its rule for bad rows.
            sink_id: The sink, whose name counts towards a limit of keys.
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
        """Return the items of a batch of rows, and the rows that were not set apart.

        The job's function gets a batch as a whole. If a row of it is bad, the function gets its
        halves, down to single rows: with k bad rows of n, at most 2k (1 + log2(n/k)) further calls.

        Raises:
            ConfigError: The function returns something other than items.
            SinkError: A row has a tag that no step names, and the job's rule is to fail; there are
                more bad rows than the job keeps; or all rows of a large batch are bad, and the job
                keeps none.
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
        """Call the function on rows, and on parts of them until each of its errors has a row."""
        items: list[Any] = []
        good: list[pa.RecordBatch] = []
        parts = [rows]
        while parts:
            part = parts.pop()
            try:
                made = function(part)
                # All items before the first is enqueued: a row that fails leaves none behind.
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
        """Check that metrics among the items can be sent and stored; equal metrics only once."""
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

        The rows of such a partial are no longer known, so it counts as one bad row. If bad rows
        fail, so does it. A number that does not fit is the sum of many rows, and fails whatever the
        rule is.
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
    """Return a value with text for numbers that JSON cannot represent."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _in_json(inner) for key, inner in value.items()}
    return [_in_json(inner) for inner in value] if isinstance(value, list) else value


def _storable(text: str) -> str:
    """Return a text without characters that some store cannot hold: NUL and lone surrogates."""
    return text.replace("\0", "\\x00").encode(errors="backslashreplace").decode()


# Rows of declared aggregations with a key or a text that the store could not hold.
# They are found by column: in the rows of a task before any step gets them, or in the groups, where
# such rows fail the epoch. `driver/pushdown.py` has the same conditions in Spark SQL.


_compute: Any = pyarrow.compute  # its type hints lack functions

EPOCH = date(1970, 1, 1)
FIRST_DAY, LAST_DAY = ((day - EPOCH).days for day in (date.min, date.max))
"""The range of Python's dates, in days since 1970."""

IS_NULL = "is null, and no store can hold a null key; null_keys can give it a value"
NOT_UTF8 = "has a text that is not UTF-8"
HAS_NUL = "has a text with NUL, which this store cannot hold"
NO_DATE = "has a date before the year 1 or after 9999, which Python does not have"


class UnstorableRow(ValueError):
    """A declared metric of a row has a key or a text that the store cannot hold."""


class Finding(NamedTuple):
    """What is wrong with some rows.

    Attributes:
        rows: A mask of the rows; boolean.
        text: What is wrong, with the column and the metrics.
    """

    rows: pa.BooleanArray
    text: str


@dataclass(frozen=True)
class TextLimits:
    """The limits of a store on texts in keys and values.

    Attributes:
        holds_nul: Whether a text may have the character NUL.
        sink_id: The sink, whose name counts towards a limit of keys.
        most_name_bytes: The most bytes of sink, metric and entity together; None if unlimited.
    """

    holds_nul: bool
    sink_id: str
    most_name_bytes: int | None

    @classmethod
    def of(cls, job: AggregationJob, sink_id: str) -> "TextLimits":
        """Return the limits of a job's store; a store of another package has none."""
        store = job.store
        return cls(
            getattr(store, "holds_nul", True), sink_id, getattr(store, "most_name_bytes", None)
        )

    def most_entity_bytes(self, step: ArrowAggregation) -> int | None:
        """Return the most bytes that an entity of a step may have; None if unlimited."""
        if self.most_name_bytes is None or not step.types:
            return None
        longest = max(len(name.encode()) for name in step.types)
        return max(0, self.most_name_bytes - len(self.sink_id.encode()) - longest)

    def wrong_text(self, partial: Metrics) -> str | None:
        """Return what is wrong with the key or the texts of a partial; None if nothing is."""
        if None in partial.key:
            return f"metric {partial.name} has the key {partial.key}, and no store holds null there"
        values = (value for row in partial.to_rows() for value in row)
        texts = [text for text in (partial.entity, *values) if isinstance(text, str)]
        about = f"metric {partial.name} of {str(partial.entity)[:40]!r}"
        for text in texts:
            if not self.holds_nul and "\0" in text:
                return f"{about} {HAS_NUL}"
            if _is_not_unicode(text):
                return f"{about} {NOT_UTF8}"
        names = f"{self.sink_id}{partial.name}{partial.entity}".encode()
        if self.most_name_bytes is not None and len(names) > self.most_name_bytes:
            return (
                f"{about} has {len(names):,} bytes with the name of the sink, more than "
                f"{self.most_name_bytes:,}"
            )
        return None


def wrong(column: str, what: str, step: ArrowAggregation) -> str:
    """Return what is wrong with a column of a step."""
    return f"column {column!r} of {_metrics(step)} {what}"


def _metrics(step: ArrowAggregation) -> str:
    names = list(step.types) or list(step.aggregation.measures)
    return f"metric{'s' * (len(names) > 1)} {', '.join(names)}"


def too_long(step: ArrowAggregation, most: int) -> str:
    """Return what is wrong with a key of more than `most` bytes."""
    keys = step.aggregation.keys
    return (
        f"the key in column{'s' * (len(keys) > 1)} {', '.join(map(repr, keys))} of "
        f"{_metrics(step)} has more than {most:,} bytes, the most that this store holds beside the "
        "names of sink and metric"
    )


def must_not_be_null(step: ArrowAggregation, column: str) -> bool:
    """Return whether a step has no rule for null in this key or time column."""
    window = step.aggregation.window
    name = window.output if window is not None and column == window.column else column
    rule = step.null_keys
    is_declared = not callable(step.metrics)
    return is_declared and (rule is None or (isinstance(rule, Mapping) and name not in rule))


def grouping_columns(step: ArrowAggregation) -> set[str]:
    """Return the columns of the rows by which a step groups."""
    window = step.aggregation.window
    return {*step.aggregation.keys, *(() if window is None else (window.column,))}


def stored_text_columns(step: ArrowAggregation) -> set[str]:
    """Return the columns of the rows whose texts are stored: keys, and extremes of texts."""
    return {*entity_columns(step), *text_measures(step).values()}


def entity_columns(step: ArrowAggregation) -> tuple[str, ...]:
    """Return the columns of the rows that become text in the keys of declared metrics.

    Bytes in these columns are read as UTF-8. Bytes in other columns need not be text: they are only
    counted, compared or hashed.
    """
    return () if callable(step.metrics) else tuple(step.aggregation.keys)


def text_measures(step: ArrowAggregation) -> dict[str, str]:
    """Return the columns of extremes that are stored as text, by the names of their metrics."""
    return {
        name: measure.column
        for name, measure in step.aggregation.measures.items()
        if isinstance(measure, Min | Max)
        and name in step.types
        and step.types[name].columns.get("value") is str
    }


def unstorable_rows(
    rows: pa.RecordBatch, step: ArrowAggregation, limits: TextLimits
) -> Iterator[Finding]:
    """Yield what is wrong with rows of a step.

    A function in place of declared metrics may make any key of its groups, so only texts that are
    not UTF-8 are found.
    """
    key_columns, stored_texts = grouping_columns(step), stored_text_columns(step)
    entities = entity_columns(step)
    for name in step.aggregation.columns:
        column = rows.column(name)
        if name in key_columns and must_not_be_null(step, name):
            yield Finding(column.is_null(), wrong(name, IS_NULL, step))
        if name in key_columns and pa.types.is_date(column.type):
            yield Finding(_without_date(column), wrong(name, NO_DATE, step))
        if _is_string(column.type) or (name in entities and _is_text(column.type)):
            may_have_nul = limits.holds_nul or name not in stored_texts
            yield from _unstorable_texts(column, name, step, may_have_nul=may_have_nul)
    yield from _long_keys(rows, step, limits)


def unstorable_by_row(
    rows: pa.RecordBatch, steps: Sequence[ArrowStep], limits: TextLimits
) -> dict[int, str]:
    """Return what is wrong with rows of any step, by their positions."""
    found: dict[int, str] = {}
    for step in steps:
        of_step: Any = None
        if isinstance(step, ArrowAggregation):
            findings = unstorable_rows(rows, step, limits)
        else:
            findings = _unreadable_rows(rows)
        for finding in findings:
            wrong_rows = finding.rows
            if not _any(wrong_rows):
                continue
            if step.type_column is not None:
                if of_step is None:
                    tags = texts_of(rows.column(step.type_column))
                    of_step = pa.array([tag is not None and str(tag) in step.tags for tag in tags])
                wrong_rows = _compute.and_(wrong_rows, of_step)
            for position in _compute.indices_nonzero(wrong_rows).to_pylist():
                found.setdefault(position, finding.text)
    return found


def _unreadable_rows(rows: pa.RecordBatch) -> Iterator[Finding]:
    """Yield what no handler could read, whichever columns it reads."""
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if _is_string(column.type):
            yield from _not_utf8(plain(column), f"column {name!r} {NOT_UTF8}")


def check_groups(groups: pa.RecordBatch, step: ArrowAggregation, limits: TextLimits) -> None:
    """Check that the store can hold the keys and texts of groups.

    Args:
        groups: The result of the aggregation of a step with declared metrics.
        step: The step.
        limits: The limits of the store.

    Raises:
        SinkError: It cannot hold a key or text.
    """
    check_not_null(groups, step)
    for found in _in_groups(groups, step, limits):
        if _any(found.rows):
            raise refused_rows(found.text)


def refused_rows(text: str) -> SinkError:
    """Return the error of an epoch that has rows with this fault."""
    return SinkError(
        f"{text}, so nothing of this epoch is committed: leave such rows out, or give the job "
        "on_bad_row='skip', or on_bad_row=DeadLetters(), which keeps them"
    )


def _in_groups(
    groups: pa.RecordBatch, step: ArrowAggregation, limits: TextLimits
) -> Iterator[Finding]:
    texts = {key: key for key in step.aggregation.keys} | text_measures(step)
    for name, column in texts.items():
        values = groups.column(name)
        if _is_text(values.type):
            yield from _unstorable_texts(values, column, step, may_have_nul=limits.holds_nul)
    yield from _long_keys(groups, step, limits)


def _unstorable_texts(
    texts: pa.Array, column: str, step: ArrowAggregation, *, may_have_nul: bool
) -> Iterator[Finding]:
    texts = plain(texts)
    yield from _not_utf8(texts, wrong(column, NOT_UTF8, step))
    if not may_have_nul:
        has_nul = _compute.match_substring(texts.cast(pa.large_binary()), b"\0")
        yield Finding(_compute.fill_null(has_nul, False), wrong(column, HAS_NUL, step))


def _not_utf8(texts: pa.Array, text: str) -> Iterator[Finding]:
    of_bytes = texts.cast(pa.large_binary())
    try:
        of_bytes.cast(pa.large_string())
    except pa.ArrowInvalid:
        rows = [value is not None and not _is_utf8(value) for value in of_bytes.to_pylist()]
        yield Finding(pa.array(rows), text)


def _long_keys(
    rows: pa.RecordBatch, step: ArrowAggregation, limits: TextLimits
) -> Iterator[Finding]:
    most, keys = limits.most_entity_bytes(step), step.aggregation.keys
    columns = [rows.column(key) for key in keys]
    if most is None or not any(_is_text(column.type) for column in columns):
        return
    lengths: Any = pa.scalar((len(keys) - 1) * len(SEPARATOR))
    for column in columns:
        lengths = _compute.add(lengths, _bytes_in_entity(column, is_alone=len(keys) == 1))
    yield Finding(_compute.greater(lengths, most), too_long(step, most))


def _bytes_in_entity(values: pa.Array, *, is_alone: bool) -> Any:
    if not _is_text(values.type):
        values = values.cast(pa.string())
    of_each = plain(values).cast(pa.large_binary())
    lengths = _compute.fill_null(_compute.binary_length(of_each), 0)
    if not is_alone:
        for special in (ESCAPE, SEPARATOR):
            escaped = _compute.count_substring(of_each, special.encode())
            lengths = _compute.add(lengths, _compute.fill_null(escaped, 0))
    return lengths


def _without_date(days: pa.Array) -> Any:
    numbers = days.cast(pa.date32()).cast(pa.int32())
    outside = _compute.or_(_compute.less(numbers, FIRST_DAY), _compute.greater(numbers, LAST_DAY))
    return _compute.fill_null(outside, False)


def _is_text(kind: pa.DataType) -> bool:
    return _is_string(kind) or bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_string(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_not_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _any(rows: pa.BooleanArray) -> bool:
    return bool(_compute.any(rows).as_py())
