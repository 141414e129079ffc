"""`KafkaSource`: the records of a topic of Kafka, read without a consumer group."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa

from batchqueue.base.background_log import BackgroundLog
from batchqueue.base.checks import check_choice, check_switch, is_whole, require
from batchqueue.base.exact_cast import exact_cast_batch
from batchqueue.base.words import counted
from batchqueue.exceptions import BatchQueueError, ConfigError
from batchqueue.groups.errors import StreamUnavailableError
from batchqueue.groups.kafka.reader import TopicReader, UnreadableError, offset_after
from batchqueue.groups.kafka.server import (
    CALL_S,
    ELSEWHERE,
    AskedBounds,
    Bounds,
    KafkaAdmin,
    KafkaServer,
    MinuteLog,
    check_server,
    known,
)
from batchqueue.pipeline.contract import (
    Lag,
    Limit,
    Plan,
    Position,
    PositionError,
    SourceChangedError,
    SourceDataError,
    Split,
)
from batchqueue.pipeline.sources.splits import check_columns, check_position, selected

if TYPE_CHECKING:
    from confluent_kafka import Message

_log = BackgroundLog("batchqueue.pipeline")

_ELSEWHERE = {
    **ELSEWHERE,
    "group.id": "leave it out: positions are in the checkpoint",
    "group.protocol": "leave it out: no group is used",
    "enable.auto.commit": "leave it out: positions are in the checkpoint",
    "auto.offset.reset": "use start, and on_gap",
    "enable.partition.eof": "leave it out: the source needs it",
    "isolation.level": "leave it out: records of open transactions are not read",
}

_RECORD = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", "UTC")),
        pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
"""What a record consists of."""

_SPLIT, _TURN = 1_000, 4_000
"""A split ends at a multiple of the first, because a cut waits for its end; the turn of a partition
ends at a multiple of the second."""

_SOON = 3
"""How many partitions are fetched ahead of their turns when memory is short."""

_FRESH_S = 0.2
"""How long the ends of partitions are used before they are asked for again."""

_LOOK_UP_S = 1
_MISSING_S = 60
"""How long a topic may be missing, or shorter than what was read of it: a broker that starts, or
that has just become a leader, may not know better."""


class KafkaSource:
    """The records of a topic of Kafka, read without a consumer group.

    The checkpoint of the pipeline has the offsets, and nothing is committed to the brokers. So a
    sink that stores the cut in its own transaction takes each record exactly once. Partitions are
    read in turns of up to 4,000 offsets, each in the order of its offsets. Records of transactions
    that were aborted are left out, and those of an open one wait for its end.

    While brokers are away, the source waits for them. Added partitions are found within ten
    seconds, and read from their first record.

    Attributes:
        name: Its name in statistics and errors.
        bounded: Whether it ends, which it does only with `watch=False`.

    Example:
        ```python
        orders = KafkaSource("orders", bootstrap="broker:9092", schema=ORDERS)
        pipeline.source(orders)
        ```
    """

    def __init__(
        self,
        topic: str,
        *,
        bootstrap: str,
        schema: pa.Schema | None = None,
        columns: Sequence[str] | None = None,
        start: Literal["earliest", "latest"] | datetime = "earliest",
        watch: bool = True,
        on_gap: Literal["fail", "skip"] = "fail",
        config: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> None:
        """Describe what to read, without connecting.

        Args:
            topic: The name of the topic.
            bootstrap: Some of the brokers, as "host:port,host:port".
            schema: The columns of the values, which are JSON objects. A field that an object lacks
                is null, and one that the schema lacks is left out. All are null for a record
                without a value, or with the value `null`. Default: None, values are bytes, in the
                column `value`.
            columns: The columns of the record, of `key`, `value` (binary), `partition` (int32),
                `offset` (int64), `timestamp` (in milliseconds, UTC) and `headers` (a list of `key`
                and `value`). With a schema they come after its columns. Default: None, all; with a
                schema none.
            start: Where the first run begins: with the first record ("earliest"), after the last
                ("latest", for `watch=True`), or with the first record from a time on, which is a
                datetime with a time zone. Default: "earliest".
            watch: Whether to continue with new records, indefinitely; otherwise the source ends
                where the topic ends when the first run begins. Default: True.
            on_gap: What to do when retention has removed records that were not read: end the run
                ("fail"), or log how many offsets there were, and continue behind them ("skip").
                Default: "fail".
            config: Settings of librdkafka, for instance `security.protocol` or `sasl.username`.
                They pickle with the source, including passwords. Default: none.
            name: The name in statistics and errors. Default: None, the topic.

        Raises:
            ConfigError: An argument is invalid.
            MissingPackageError: confluent-kafka is not installed.
        """
        require("confluent_kafka", "KafkaSource", "kafka")
        check_server("KafkaSource", topic, bootstrap, config, _ELSEWHERE)
        if not isinstance(start, datetime):
            check_choice("start", start, ("earliest", "latest"))
        elif start.tzinfo is None:
            raise ConfigError(f"start is {start!r}; give it a time zone, for instance timezone.utc")
        elif start.timestamp() < 0:
            raise ConfigError(f"start is {start!r}; give a time from 1970 on")
        check_switch("watch", watch)
        if start == "latest" and not watch:
            raise ConfigError(
                "start is 'latest' and watch is False: no record follows; set watch=True"
            )
        check_choice("on_gap", on_gap, ("fail", "skip"))
        self.name = name or topic
        self.bounded = not watch
        self._server = KafkaServer(bootstrap, topic, dict(config or {}))
        self._start = start
        self._skips = on_gap == "skip"
        self._values = _checked_schema(schema)
        chosen = check_columns(columns)
        names = [] if schema is not None and chosen is None else chosen
        self._of_record = selected(_RECORD, names, "KafkaSource")
        both = [each for each in self._of_record.names if schema and each in schema.names]
        if both:
            raise ConfigError(f"columns and schema both have {both}; rename those of the schema")
        self._close()

    def _close(self) -> None:
        self._log = MinuteLog(f"source {self.name}", _log)
        self._topic: _Topic | None = None
        self._topic_of_lag: _Topic | None = None
        self._reader: TopicReader | None = None
        self._reads = ""  # the id of the topic
        self._process = os.getpid()
        self._plans_here = False

    def __getstate__(self) -> dict[str, Any]:
        """Leave out connections, which belong to the process that reads."""
        opened = ("_log", "_topic", "_topic_of_lag", "_reader", "_reads", "_process", "_plans_here")
        return {name: value for name, value in self.__dict__.items() if name not in opened}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._close()

    def __repr__(self) -> str:
        """Return where the topic is, without secrets."""
        return f"KafkaSource({self._server.topic!r}, bootstrap={self._server.bootstrap!r})"

    def schema(self) -> pa.Schema:
        """Return the columns of the values and of the record."""
        return pa.schema([*(self._values or ()), *self._of_record])

    def initial(self) -> Position:
        """Return the offsets of the first run, by `start`.

        Raises:
            ConfigError: The topic does not exist.
            StreamUnavailableError: The brokers cannot be reached.
        """
        admin = KafkaAdmin(self._server)
        found = admin.topic()
        if found is None:
            raise ConfigError(
                f'source {self.name!r}: topic "{self._server.topic}" does not exist: create it, or '
                "check its name, and bootstrap"
            )
        numbers = range(found.partitions)
        asked = admin.bounds(numbers, CALL_S)
        bounds = [known(asked[each]) for each in numbers]
        ends = [each.end for each in bounds]
        if isinstance(self._start, datetime):
            at = admin.offsets_at(numbers, round(self._start.timestamp() * 1_000))
            offsets = [ends[each] if at[each] < 0 else min(at[each], ends[each]) for each in at]
        else:
            offsets = ends if self._start == "latest" else [each.first for each in bounds]
        return _Place(found.id, 0, offsets, ends if self.bounded else None).as_position()

    def plan(self, start: Position, limit: Limit) -> Plan:
        """Return the next split. The limit does not matter: a plan has one split.

        Raises:
            PositionError: `start` is not a position of this source.
            SourceChangedError: The topic is gone, or is another one of that name; or records
                between `start` and its end are gone, and `on_gap` is "fail".
        """
        del limit  # the number of rows is unknown: compaction and transactions leave gaps
        place = self._place(start)
        topic = self._opened_topic()
        self._plans_here = True
        is_fresh = topic.refresh(place, _FRESH_S)
        place = self._behind_gaps(place, topic.bounds)
        split = self._next(place, topic.ends(place))
        if split is None and not is_fresh and place.until is None:
            topic.refresh(place, 0)
            place = self._behind_gaps(place, topic.bounds)
            split = self._next(place, topic.ends(place))
        return Plan((), place.as_position()) if split is None else Plan((split,), split.end)

    def between(self, start: Position, end: Position) -> list[Split]:
        """Return the splits between two positions."""
        place, last = self._place(start), self._place(end)
        if place.topic != last.topic or any(
            place.offset(number) > offset for number, offset in enumerate(last.offsets)
        ):
            raise PositionError(f"source {self.name!r}: {end!r} is not behind {start!r}")
        splits = []
        while (split := self._next(place, last.offsets)) is not None:
            splits.append(split)
            place = self._place(split.end)
        # Where the turn of the last split has not ended, only `end` says so.
        return [*splits[:-1], splits[-1]._replace(end=end)] if splits else []

    def _next(self, place: "_Place", ends: Sequence[int]) -> Split | None:
        """Return the split of the next partition that has any, up to the ends."""
        for step in range(len(ends)):
            number = (place.turn + step) % len(ends)
            at = place.offset(number)
            end = min(at - at % _SPLIT + _SPLIT, ends[number])
            if end > at:
                has_turn = end % _TURN and end < ends[number]
                turn = number if has_turn else (number + 1) % len(ends)
                behind = place.after(number, end, turn)
                what = _Range(number, at, end)
                start = place.as_position()
                return Split(str(number), start, behind.as_position(), None, None, what)
        return None

    def _behind_gaps(self, place: "_Place", bounds: Mapping[int, Bounds]) -> "_Place":
        """Return the position behind the records that were removed."""
        removed = [each for each, found in bounds.items() if found.first > place.offset(each)]
        for number in removed:
            at = self._behind_gap(number, place.offset(number), bounds[number].first)
            place = place.after(number, at, place.turn)
        return place

    def _behind_gap(self, partition: int, at: int, first: int) -> int:
        """Return an offset, or the first one of the partition if that is larger."""
        if at >= first:
            return at
        where = f"{self._server.topic}/{partition}"
        lost = f"the {counted(first - at, 'offset')} from {at} on were removed before being read"
        if not self._skips:
            raise SourceChangedError(
                f"source {self.name!r}: {where}: {lost}; raise the retention of the topic, and "
                'begin with a new checkpoint, or set on_gap="skip"'
            )
        _log.warning("source %s: %s: %s", self.name, where, lost)
        return first

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Read the records of a split, as soon as the brokers have sent them.

        Raises:
            SourceDataError: A value is not an object of the schema; the error has its offset.
            SourceChangedError: The topic or some of the records are gone.
            KafkaRefusedError: A right is missing.
        """
        partition, at, end = split.what
        place = self._place(split.start)
        topic = self._opened_topic()
        topic.check(place)
        reader, soon = self._opened_reader(place), self._soon(place, partition)
        try:
            while at < end:
                try:
                    for run in reader.read(partition, at, end, soon, lambda: topic.check(place)):
                        yield self._batch(run)
                        at = offset_after(run)
                    return
                except UnreadableError as error:
                    at = self._readable(partition, at, end, error)
        except Exception:
            self._reader = None  # what it holds may have gaps
            raise

    def _opened_topic(self) -> "_Topic":
        if self._process != os.getpid():
            self._close()  # a forked child has no threads of the clients
        self._topic = self._topic or _Topic(self._server, self.name, self._log)
        return self._topic

    def _opened_reader(self, place: "_Place") -> TopicReader:
        count = len(place.offsets) if self._plans_here else 1
        if self._reader is None or self._reads != place.topic:
            self._reader, self._reads = TopicReader(self._server, count), place.topic
        if self._plans_here:
            self._reader.begin({each: place.offset(each) for each in range(count)})
        return self._reader

    def _soon(self, place: "_Place", partition: int) -> list[int]:
        """Return the next partitions that have records, beginning with the one to be read."""
        soon = [partition]
        ends = self._opened_topic().ends(place) if self._plans_here else []
        for step in range(1, len(ends)):
            number = (partition + step) % len(ends)
            if ends[number] > place.offset(number):
                soon.append(number)
            if len(soon) == _SOON:
                break
        return soon

    def _readable(self, partition: int, at: int, end: int, error: UnreadableError) -> int:
        """Return where to continue in a partition that could not be read.

        Raises:
            SourceChangedError: Records are gone.
            SourceDataError: The brokers send a batch that is corrupt.
        """
        where = f"source {self.name!r}: {self._server.topic}/{partition}"
        if error.is_corrupt:
            raise SourceDataError(
                f"{where} cannot be read at offset {at}: {error}; let another replica become the "
                "leader, or begin with a new checkpoint behind it"
            ) from None
        try:
            found = known(self._opened_topic().bounds_of(partition))
        except StreamUnavailableError as unavailable:
            self._log.warn("away", f"waits: {unavailable}")
            return at
        if at > found.end or (error.is_silence and end > found.end):
            raise SourceChangedError(
                f"{where} ends at offset {found.end}, and was to be read from {at} to {end}; it "
                "lost records, or is another topic of that name: begin with a new checkpoint"
            ) from None
        if error.is_silence:
            self._log.warn("silent", f"{self._server.topic}/{partition} sends nothing from {at} on")
        return self._behind_gap(partition, at, found.first)

    def lag(self, at: Position) -> dict[str, Lag]:
        """Return how many offsets follow, by partition; None while its leader is away."""
        place = self._place(at)
        ends: Sequence[int | None]
        if place.until is not None:
            ends = place.until
        else:
            topic = self._topic_of_lag or _Topic(self._server, self.name, self._log)
            self._topic_of_lag = topic
            topic.refresh(place, 0)
            ends = [
                topic.bounds[each].end if each in topic.bounds else None
                for each in range(topic.partitions)
            ]
        return {
            str(number): Lag(None if end is None else max(0, end - place.offset(number)), None)
            for number, end in enumerate(ends)
        }

    def commit(self, end: Position) -> None:
        """Do nothing: the checkpoint has the offsets."""

    def _place(self, position: Position) -> "_Place":
        check_position(position, self.name, _FIELDS)
        place = _Place(**position)
        numbers = [place.turn, *place.offsets, *(place.until or ())]
        if not all(is_whole(each, 0) for each in numbers):
            raise PositionError(
                f"source {self.name!r}: {position!r} is not one of its positions, which have "
                "offsets from 0 on"
            )
        return place

    # Rows.

    def _batch(self, run: "list[Message]") -> pa.RecordBatch:
        arrays = [_ARRAYS[name](run) for name in self._of_record.names]
        if self._values is None:
            return pa.record_batch(arrays, self._of_record)
        return pa.record_batch([*self._objects(run).columns, *arrays], self.schema())

    def _objects(self, run: "list[Message]") -> pa.RecordBatch:
        """Return the values of records, which are JSON, as rows."""
        try:
            return self._rows(run)
        except (pa.ArrowException, ValueError) as error:
            if len(run) > 1:
                return pa.concat_batches([self._objects([each]) for each in run])
            [message] = run
            raise SourceDataError(
                f"source {self.name!r}: the value of {self._server.topic}/{message.partition()} "
                f"at offset {message.offset()} is not a JSON object of the schema: {error}; read "
                "it as bytes, without schema, and decide in a function that you pass to map"
            ) from None

    def _rows(self, run: "list[Message]") -> pa.RecordBatch:
        assert self._values is not None
        values = [message.value() for message in run]
        return _parsed([b"null" if value is None else value for value in values], self._values)


def _checked_schema(schema: Any) -> pa.Schema | None:
    if schema is None:
        return None
    if not isinstance(schema, pa.Schema) or not len(schema):
        raise ConfigError(f"schema is {schema!r}; give a pyarrow.Schema with at least one column")
    if len(set(schema.names)) < len(schema.names):
        raise ConfigError(f"schema has the columns {schema.names}; give each name once")
    schema = schema.remove_metadata()
    try:
        _parsed([b"{}"], pa.schema([field.with_nullable(True) for field in schema]))
    except pa.ArrowException as error:
        raise ConfigError(
            f"schema is {schema!r}, which pyarrow does not read from JSON: {error}; give other "
            "types, and cast in a function that you pass to map"
        ) from None
    return schema


def _parsed(values: list[bytes], schema: pa.Schema) -> pa.RecordBatch:
    """Return values of JSON as rows.

    Each is wrapped in its own object: two in one value, or halves of one in two, are errors,
    and pyarrow crashes if the text begins with `null`.
    """
    from pyarrow import json as arrow_json

    text = b'{"v":' + b'}\n{"v":'.join(values) + b"}"
    table = arrow_json.read_json(
        pa.BufferReader(text),
        arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
        arrow_json.ParseOptions(
            explicit_schema=pa.schema([("v", pa.struct(list(schema)))]),
            newlines_in_values=True,
            unexpected_field_behavior="ignore",
        ),
    )
    if table.num_rows != len(values):
        raise ValueError(f"it has {counted(table.num_rows, 'object')}")
    rows = table.column(0).combine_chunks()
    return exact_cast_batch(pa.RecordBatch.from_arrays(rows.flatten(), schema.names), schema)


def _timestamps(run: "list[Message]") -> pa.Array:
    times = [message.timestamp() for message in run]
    return pa.array([time if kind else None for kind, time in times], pa.timestamp("ms", "UTC"))


def _headers(run: "list[Message]") -> pa.Array:
    pairs = [
        [{"key": key, "value": value} for key, value in message.headers() or ()] for message in run
    ]
    return pa.array(pairs, _RECORD.field("headers").type)


_ARRAYS: Mapping[str, Any] = {
    "key": lambda run: pa.array([each.key() for each in run], pa.binary()),
    "value": lambda run: pa.array([each.value() for each in run], pa.binary()),
    "partition": lambda run: pa.array([each.partition() for each in run], pa.int32()),
    "offset": lambda run: pa.array([each.offset() for each in run], pa.int64()),
    "timestamp": _timestamps,
    "headers": _headers,
}
"""Makes the columns of the record."""


class _Range(NamedTuple):
    """What to read of a partition: offsets from `at` to before `end`."""

    partition: int
    at: int
    end: int


_FIELDS: dict[str, tuple[type, ...]] = {
    "topic": (str,),
    "turn": (int,),
    "offsets": (list,),
    "until": (list, type(None)),
}


@dataclass(frozen=True)
class _Place:
    """A position.

    Attributes:
        topic: The id of the topic, which a topic of the same name does not have.
        turn: The partition that is read next, unless it has no records.
        offsets: The next offset, by partition; 0 for those that were added later.
        until: The offsets where the source ends, by partition; None if it does not end.
    """

    topic: str
    turn: int
    offsets: list[int]
    until: list[int] | None

    def offset(self, partition: int) -> int:
        """Return the next offset of a partition."""
        return self.offsets[partition] if partition < len(self.offsets) else 0

    def after(self, partition: int, offset: int, turn: int) -> "_Place":
        """Return the position after a split."""
        offsets = [self.offset(each) for each in range(max(len(self.offsets), partition + 1))]
        offsets[partition] = offset
        return replace(self, offsets=offsets, turn=turn)

    def as_position(self) -> Position:
        """Return it as a position."""
        return dict(self.__dict__)


class _Topic:
    """What is known about the topic: its partitions, and where each begins and ends.

    Attributes:
        partitions: The number of partitions.
        bounds: The bounds of each partition whose leader has answered last time.
    """

    def __init__(self, server: KafkaServer, source: str, log: MinuteLog) -> None:
        """Prepare to connect.

        Args:
            server: The brokers and the topic.
            source: The name of the source, for errors.
            log: Where it says what it waits for.
        """
        self._admin = KafkaAdmin(server)
        self._server = server
        self._source = source
        self._interval_s = int(server.reader_settings(1)[_REFRESH]) / 1_000
        self.partitions = 0
        self.bounds: dict[int, Bounds] = {}
        self._described_s = self._asked_s = float("-inf")
        self._since: dict[int | str, float] = {}
        self._log = log
        # The partitions without a leader are asked for apart, so that the others do not wait.
        self._away: set[int] = set()
        self._asked: AskedBounds = {}

    def refresh(self, place: _Place, after_s: float) -> bool:
        """Ask for the bounds again if they are older than that; return whether they were.

        Raises:
            SourceChangedError: The topic is not the one of the position.
        """
        if time.monotonic() - self._asked_s < after_s:
            return False
        self.check(place)
        self._collect()
        try:
            present = [each for each in range(self.partitions) if each not in self._away]
            self._note(self._admin.bounds_of(self._admin.ask_bounds(present, CALL_S), CALL_S))
            if self._away and not self._asked:
                self._admin.look_up(_LOOK_UP_S)
                self._asked = self._admin.ask_bounds(sorted(self._away), CALL_S)
        except StreamUnavailableError as error:
            self._log.warn("away", f"waits: {error}")
        self._asked_s = time.monotonic()
        return True

    def ends(self, place: _Place) -> list[int]:
        """Return where the partitions end, at least the offset that is next.

        Raises:
            SourceChangedError: A partition has become shorter than what was read of it.
        """
        if place.until is not None:
            return place.until
        ends = []
        for number in range(self.partitions):
            at = place.offset(number)
            end = self.bounds[number].end if number in self.bounds else at
            if self._lasts(number, end < at):
                raise SourceChangedError(
                    f"source {self._source!r}: {self._server.topic}/{number} ends at offset {end}, "
                    f"and has been read up to {at}: it lost records, and new ones with the same "
                    "offsets would be missed; begin with a new checkpoint"
                )
            ends.append(max(at, end))
        return ends

    def bounds_of(self, partition: int) -> Bounds | BatchQueueError:
        """Ask for the bounds of a partition, and wait for them."""
        return self._admin.bounds([partition], CALL_S)[partition]

    def check(self, place: _Place) -> None:
        """Ask for the topic if it was not asked for recently.

        Raises:
            SourceChangedError: It is not the one of the position.
        """
        now = time.monotonic()
        if now - self._described_s < self._interval_s:
            return
        self._described_s = now
        try:
            found = self._admin.topic()
        except StreamUnavailableError as error:
            self._log.warn("away", f"waits: {error}")
            return
        if self._lasts("topic is missing", found is None):
            raise SourceChangedError(
                f"source {self._source!r}: topic {self._server.topic!r} does not exist any more; "
                "create it, and begin with a new checkpoint"
            )
        if found is not None:
            if found.id != place.topic:
                raise SourceChangedError(
                    f"source {self._source!r}: topic {self._server.topic!r} has the id {found.id}, "
                    f"and the position is of {place.topic}: it was deleted and created again, or "
                    "is another one of that name; begin with a new checkpoint"
                )
            self.partitions = max(self.partitions, found.partitions)

    def _collect(self) -> None:
        """Note the bounds of partitions that were without a leader."""
        if self._asked and all(each.done() for both in self._asked.values() for each in both):
            asked, self._asked = self._asked, {}
            self._away = set()
            self._note(self._admin.bounds_of(asked, CALL_S))

    def _note(self, found: Mapping[int, Bounds | BatchQueueError]) -> None:
        for number, each in found.items():
            if isinstance(each, Bounds):
                self.bounds[number] = each
            elif isinstance(each, StreamUnavailableError):
                self._away.add(number)
                self.bounds.pop(number, None)
                self._log.warn("away", f"waits: {each}")
            else:
                raise each

    def _lasts(self, what: int | str, holds: bool) -> bool:
        """Return whether something has been so for a minute; a partition is shorter."""
        if not holds:
            self._since.pop(what, None)
            return False
        now = time.monotonic()
        return now - self._since.setdefault(what, now) >= _MISSING_S


_REFRESH = "topic.metadata.refresh.interval.ms"
