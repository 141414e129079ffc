"""Fits the columns of a file to the schema of the source, or says which column does not fit."""

from typing import TYPE_CHECKING, NamedTuple

from batchqueue.exceptions import ConfigError
from batchqueue.pipeline.errors import SourceDataError

if TYPE_CHECKING:
    import pyarrow as pa


class Fit(NamedTuple):
    """The schema that all batches of a source have, and how strict it is about files."""

    schema: "pa.Schema"
    given: bool
    """Whether the user gave the schema: then values are cast, and missing columns are null."""
    all_columns: bool
    """Whether the user asked for all columns: then a file must not have others."""

    def check(self, file: "pa.Schema", path: str) -> None:
        """Refuse a file whose columns do not fit.

        Raises:
            SourceDataError: A column is missing, superfluous, of another type, or there twice.
        """
        for field in self.schema:
            places = file.get_all_field_indices(field.name)
            if len(places) > 1:
                raise SourceDataError(
                    f"{path} has {len(places)} columns named {field.name!r}; rename them"
                )
            if not places:
                if self.given and field.nullable:
                    continue
                raise SourceDataError(
                    f"{path} has no column {field.name!r}; it has "
                    f"{', '.join(map(repr, file.names)) or 'none'}; leave the column out of "
                    "`columns`, or give `schema`, with which it reads as null"
                )
            found = file.field(places[0]).type
            if found != field.type and not self.given:
                raise SourceDataError(
                    f"{path}: column {field.name!r} is {found} and that of the source is "
                    f"{field.type}; give `schema` to cast it"
                )
        self.check_names(file.names, path)

    def check_names(self, names: "list[str]", path: str) -> None:
        """Refuse columns that would be dropped although all were asked for.

        Raises:
            SourceDataError: There is one.
        """
        more = [name for name in names if name not in self.schema.names]
        if self.all_columns and more:
            raise SourceDataError(
                f"{path} has a column {more[0]!r}, which the first file does not have; give "
                "`columns` to leave it out, or `schema` to take it"
            )

    def is_exact(self, batches: "pa.Schema") -> bool:
        """Return whether batches of a schema are what `apply` would make of them."""
        has_all = self.schema.equals(batches, check_metadata=True)
        return has_all and all(field.nullable for field in self.schema)

    def apply(self, batch: "pa.RecordBatch", path: str) -> "pa.RecordBatch":
        """Return a batch of a file with the schema of the source.

        Raises:
            SourceDataError: A value cannot be cast to the type that was given, or is null where
                the schema forbids it.
        """
        import pyarrow as pa

        from batchqueue._exact_cast import exact_cast

        columns = []
        for field in self.schema:
            place = batch.schema.get_field_index(field.name)
            if place < 0:
                columns.append(pa.nulls(batch.num_rows, field.type))
                continue
            column = batch.column(place)
            if column.type != field.type:
                try:
                    column = exact_cast(column, field.type)
                except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                    raise SourceDataError(
                        f"{path}: column {field.name!r} cannot be cast from {column.type} to "
                        f"{field.type}: {error}; give another `schema`"
                    ) from error
            if not field.nullable and column.null_count:
                raise SourceDataError(
                    f"{path}: column {field.name!r} has nulls, which the schema forbids; give a "
                    "`schema` in which it is nullable"
                )
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def choose(schema: "pa.Schema", columns: "tuple[str, ...] | None", path: str) -> "pa.Schema":
    """Return the columns of a schema in the order of their names, without metadata.

    Args:
        schema: Of a file, or as the user gave it.
        columns: Names; None for all.
        path: Where the schema is from, for the error.

    Raises:
        ConfigError: A column is missing or there twice.
    """
    import pyarrow as pa

    names = schema.names if columns is None else columns
    for name in names:
        count = len(schema.get_all_field_indices(name))
        if count != 1:
            raise ConfigError(
                f"{path} has {count or 'no'} column{'s' * (count > 1)} named {name!r}; it has "
                f"{', '.join(map(repr, schema.names)) or 'none'}"
            )
    return pa.schema([schema.field(name).remove_metadata() for name in names])
