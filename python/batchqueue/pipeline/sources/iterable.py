"""`IterableSource`: rows from anything that can be iterated over, again and again."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from batchqueue._words import a_type, counted
from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.contract import Lag, Limit, Plan, Position, Split
from batchqueue.pipeline.errors import PositionError, SourceChangedError

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_ROWS = 1_000_000
_FIELD = "rows"


class IterableSource:
    """A source of the rows of an iterable, which a factory makes.

    The position is the count of rows. To continue from one, the source makes a new iterable and
    skips as many rows, so the factory must give the same rows in the same order each time; skipping
    takes as long as making them.

    It holds one split in memory. It pickles if the factory does.

    Example:
        >>> from batchqueue.pipeline import IterableSource
        >>> source = IterableSource(lambda: ({"n": n} for n in range(1000)), split_rows=400)
        >>> from batchqueue.pipeline import Limit
        >>> [split] = source.plan({"rows": 800}, Limit(rows=500, bytes=1 << 20)).splits
        >>> [batch.num_rows for batch in source.read(split)]
        [200]
    """

    bounded = True

    def __init__(
        self,
        factory: "Callable[[], Iterable[Mapping[str, Any] | pa.RecordBatch | pa.Table]]",
        *,
        schema: "pa.Schema | None" = None,
        split_rows: int = 500,
        name: str = "iterable",
    ) -> None:
        """Make a source; the factory is called with the first use.

        Args:
            factory: Makes an iterable of dicts, record batches or tables, in any mixture. It is
                called for each run, and whenever rows are read out of turn.
            schema: The columns. Default: None, those of the first split. A value that its column
                could only hold changed, such as 1.5 among integers, is an error when it is read.
            split_rows: The rows of a split, 1 to 1,000,000. A cut falls between two splits.
                Default: 500.
            name: Its name in checkpoints and statistics. Default: "iterable".

        Raises:
            ConfigError: An argument is invalid.
        """
        if not callable(factory):
            raise ConfigError(
                f"factory is {factory!r}; give a function that returns an iterable, for instance "
                "lambda: rows"
            )
        if not isinstance(split_rows, int) or not 1 <= split_rows <= _MOST_ROWS:
            raise ConfigError(f"split_rows is {split_rows!r}; give an int from 1 to {_MOST_ROWS:,}")
        if not isinstance(name, str) or not name or not name.isprintable():
            raise ConfigError(f"name is {name!r}; give printable characters, at least one")
        self.name = name
        self._factory = factory
        self._schema = schema
        self._split_rows = split_rows
        self._last_made: object = None
        self._forget()

    def _forget(self) -> None:
        self._rows: Iterator[Mapping[str, Any] | pa.RecordBatch] | None = None
        self._at = 0
        self._left: pa.RecordBatch | None = None
        self._taken: tuple[int, list[pa.RecordBatch]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for opened in ("_rows", "_at", "_left", "_taken"):
            del state[opened]
        return state | {"_last_made": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def schema(self) -> "pa.Schema":
        """Return the given schema, or that of the first split; without any rows it is empty."""
        import pyarrow as pa

        if self._schema is None:
            self._batches_at(0)
        return pa.schema([]) if self._schema is None else self._schema

    def initial(self) -> Position:
        """Return the position of the first row."""
        return {_FIELD: 0}

    def plan(self, start: Position, limit: Limit) -> Plan:
        """Return the next split. The limit does not matter: there is one split in a plan."""
        del limit
        split = self._split_at(self._row_of(start))
        if split is None:
            return Plan((), start)
        return Plan((split,), split.end)

    def between(self, start: Position, end: Position) -> Sequence[Split]:
        """Return the splits from one position to a later one."""
        at, last = self._row_of(start), self._row_of(end)
        splits = []
        while at < last:
            split = self._split_at(at)
            at = last + 1 if split is None else self._row_of(split.end)
            if split is None or at > last:
                raise SourceChangedError(
                    f"source {self.name!r} has no end of a split at row {last}; give the factory "
                    f"and split_rows of the run that stopped there (split_rows is now "
                    f"{self._split_rows})"
                )
            splits.append(split)
        return splits

    def read(self, split: Split) -> "Iterator[pa.RecordBatch]":
        """Return the rows of a split."""
        batches = self._batches_at(self._row_of(split.start))
        rows = sum(batch.num_rows for batch in batches)
        wanted = self._row_of(split.end) - self._row_of(split.start)
        if rows != wanted:
            raise SourceChangedError(
                f"source {self.name!r} has {counted(rows, 'row')} from row {split.start[_FIELD]} "
                f"on and had {wanted}; the factory must give the same rows each time"
            )
        yield from batches

    def lag(self, at: Position) -> dict[str, Lag]:
        """Return nothing: how many rows follow is not known."""
        del at
        return {}

    def commit(self, end: Position) -> None:
        """Do nothing: rows are not kept."""

    def __repr__(self) -> str:
        return f"IterableSource({self._factory!r}, name={self.name!r})"

    def _row_of(self, position: Position) -> int:
        row = position.get(_FIELD) if isinstance(position, dict) else None
        if not isinstance(row, int) or isinstance(row, bool) or row < 0 or len(position) != 1:
            raise PositionError(
                f"source {self.name!r}: {position!r} is not a position; give "
                '{"rows": count}, as `plan` returned it'
            )
        return row

    def _split_at(self, row: int) -> Split | None:
        rows = sum(batch.num_rows for batch in self._batches_at(row))
        if not rows:
            return None
        # Of unknown size, because only one split is in memory: it ends the plan.
        return Split("0", {_FIELD: row}, {_FIELD: row + rows}, None, None, None)

    def _batches_at(self, row: int) -> "list[pa.RecordBatch]":
        """Return the rows of the split that begins at a row; none behind the end."""
        if self._taken is None or self._taken[0] != row:
            if self._rows is None or self._at != row:
                self._skip_to(row)
            self._taken = row, self._next_batches()
        return self._taken[1]

    def _skip_to(self, row: int) -> None:
        self._forget()
        self._rows = self._pieces()
        while self._at < row:
            piece = next(self._rows, None)
            if piece is None:
                raise SourceChangedError(
                    f"source {self.name!r} has {counted(self._at, 'row')} and the position is row "
                    f"{row}; the factory must give the same rows each time"
                )
            if isinstance(piece, Mapping):
                self._at += 1
                continue
            rest = piece.num_rows - (row - self._at)
            if rest > 0:
                self._left = piece.slice(row - self._at)
            self._at = min(row, self._at + piece.num_rows)

    def _next_batches(self) -> "list[pa.RecordBatch]":
        """Take the rows of a split, and move behind them."""
        assert self._rows is not None
        batches: list[pa.RecordBatch] = []
        dicts: list[Mapping[str, Any]] = []
        wanted = self._split_rows
        while wanted:
            piece: Mapping[str, Any] | pa.RecordBatch | None = self._left
            if piece is None:
                piece = next(self._rows, None)
            self._left = None
            if piece is None:
                break
            if isinstance(piece, Mapping):
                dicts.append(piece)
                wanted -= 1
                continue
            batches += self._of_dicts(dicts)
            dicts = []
            batch: pa.RecordBatch = piece
            if batch.num_rows > wanted:
                self._left = batch.slice(wanted)
                batch = batch.slice(0, wanted)
            batches.append(self._checked(batch))
            wanted -= batch.num_rows
        batches += self._of_dicts(dicts)
        self._at += self._split_rows - wanted
        return batches

    def _of_dicts(self, dicts: list[Mapping[str, Any]]) -> "list[pa.RecordBatch]":
        from batchqueue.pipeline.sources._dict_rows import batch_of_dicts

        if not dicts:
            return []
        if self._schema is not None:
            known = set(self._schema.names)
            for row in dicts:
                if not known.issuperset(row):
                    raise SourceChangedError(
                        f"source {self.name!r} gave a row with {sorted(set(row) - known)}, and its "
                        f"columns are {_text(self._schema)}; give schema= with all columns"
                    )
        return [self._checked(batch_of_dicts(self.name, dicts, self._schema))]

    def _checked(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        if self._schema is None:
            self._schema = batch.schema
        elif not batch.schema.equals(self._schema):
            raise SourceChangedError(
                f"source {self.name!r} gave columns {_text(batch.schema)}, and before "
                f"{_text(self._schema)}; give schema=, and the same columns in each batch"
            )
        return batch

    def _pieces(self) -> "Iterator[Mapping[str, Any] | pa.RecordBatch]":
        """Return the dicts and the record batches that have rows."""
        import pyarrow as pa

        made = self._factory()
        if isinstance(made, Iterator):
            if made is self._last_made:
                raise ConfigError(
                    f"the factory of source {self.name!r} returned the same iterator again, which "
                    "has no rows any more; make a new one in each call"
                )
            self._last_made = made
        for item in made:
            if isinstance(item, Mapping):
                yield item
            elif isinstance(item, pa.RecordBatch | pa.Table):
                batches = item.to_batches() if isinstance(item, pa.Table) else [item]
                yield from (batch for batch in batches if batch.num_rows)
            else:
                raise TypeError(
                    f"the factory of source {self.name!r} gave {a_type(item)}; give "
                    "dicts, record batches or tables"
                )


def _text(schema: "pa.Schema") -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
