"""How much memory the rows of a record batch take, also where the batch is a slice.

`RecordBatch.nbytes` counts only the rows of a slice, with three exceptions: a dictionary, the data
of a string view and the values of a list view count as a whole in each slice. Slices of one batch
with a large dictionary would all look too large to be cut. Here a slice counts its share of a
dictionary, and of views the values that it refers to.
"""

from functools import lru_cache

import pyarrow as pa
from pyarrow import types


class RowsMeter:
    """Measures the bytes of the rows of record batches, as if they did not share anything.

    Most of the batches have the same schema. Dictionaries inside unions and run-end encoded columns
    count as a whole.
    """

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None
        self._shares = False

    def __call__(self, batch: pa.RecordBatch) -> int:
        """Return the bytes of the rows of a batch."""
        schema = batch.schema
        if self._schema is None or not self._schema.equals(schema):
            self._schema = schema
            self._shares = any(map(_shares, schema.types))
        return _columns_bytes(batch) if self._shares else int(batch.nbytes)


def _columns_bytes(batch: pa.RecordBatch) -> int:
    return sum(map(_array_bytes, batch.columns))


@lru_cache(maxsize=1024)
def _shares(data_type: pa.DataType) -> bool:
    """Return whether slices of arrays of a type share what `nbytes` counts in each of them."""
    if types.is_dictionary(data_type) or _is_view(data_type) or _is_list_view(data_type):
        return True
    if isinstance(data_type, pa.BaseExtensionType):
        return _shares(data_type.storage_type)
    # pyarrow does not slice the children of these, so their rows cannot be counted here.
    if types.is_union(data_type) or types.is_run_end_encoded(data_type):
        return False
    return any(_shares(data_type.field(index).type) for index in range(data_type.num_fields))


def _array_bytes(array: pa.Array) -> int:
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if not _shares(array.type):
        return int(array.nbytes)
    rows = len(array)
    nulls = (rows + 7) // 8 if array.null_count else 0
    if types.is_dictionary(array.type):
        values = _array_bytes(array.dictionary)
        share = -(-values * rows // max(len(array.dictionary), 1))
        return int(array.indices.nbytes) + min(values, share)
    if _is_view(array.type):
        is_text = types.is_string_view(array.type)
        copied = array.cast(pa.large_string() if is_text else pa.large_binary())
        return int(copied.nbytes) + 8 * rows  # a view has 16 bytes, an offset 8
    return nulls + _place_bytes(array.type) * rows + sum(map(_array_bytes, _children(array)))


def _children(array: pa.Array) -> list[pa.Array]:
    """Return the values of the rows of a struct, list or map."""
    if types.is_struct(array.type):
        return list(array.flatten())
    if types.is_map(array.type):
        first, last = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
        return [part.slice(first, last - first) for part in (array.keys, array.items)]
    return [array.flatten()]


def _place_bytes(data_type: pa.DataType) -> int:
    """Return the bytes that say where the values of one row are."""
    if types.is_struct(data_type) or types.is_fixed_size_list(data_type):
        return 0
    offset = 8 if types.is_large_list(data_type) or types.is_large_list_view(data_type) else 4
    return 2 * offset if _is_list_view(data_type) else offset


def _is_view(data_type: pa.DataType) -> bool:
    return bool(types.is_string_view(data_type) or types.is_binary_view(data_type))


def _is_list_view(data_type: pa.DataType) -> bool:
    return bool(types.is_list_view(data_type) or types.is_large_list_view(data_type))
