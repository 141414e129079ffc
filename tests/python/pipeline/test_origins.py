"""Where a chunk came from, as the sink can read it."""

import json

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from batchqueue.pipeline import ChunkOrigin, chunk_origin
from batchqueue.pipeline.chunks import Origin, with_origin

BATCH = pa.record_batch({"n": [1, 2, 3]})
POSITIONS = st.none() | st.dictionaries(st.text(), st.integers() | st.text(), max_size=3)


@given(
    st.tuples(st.text(), st.text()),
    st.integers(0, 2**63),
    st.text(),
    POSITIONS,
    st.integers(0, 2**63),
    st.lists(st.integers(0, 2**63), max_size=3),
)
def test_any_origin_is_read_as_it_was_written(names, cut, partition, position, number, parts):
    text = None if position is None else json.dumps(position)
    origin = Origin(cut, partition, text, number)
    for part in parts:
        origin = origin.child(part)
    chunk = with_origin(BATCH, *names, origin)
    joined = ".".join(map(str, parts))
    assert chunk_origin(chunk) == ChunkOrigin(*names, cut, partition, position, number, joined)
    assert chunk.to_pydict() == BATCH.to_pydict()


def test_other_metadata_and_the_batch_itself_stay_as_they_are():
    batch = BATCH.replace_schema_metadata({"unit": "cents"})
    chunk = with_origin(batch, "p", "s", Origin(1, "file", None, 0))
    assert chunk.schema.metadata[b"unit"] == b"cents"
    assert batch.schema.metadata == {b"unit": b"cents"}


def test_chunks_of_different_splits_and_cuts_are_distinct():
    origins = [
        Origin(cut, partition, position, number)
        for cut in (1, 2)
        for partition in ("a", "b")
        for position in ('{"at": 1}', '{"at": 2}', None)
        for number in (0, 1)
    ]
    found = {str(chunk_origin(with_origin(BATCH, "p", "s", origin))) for origin in origins}
    assert len(found) == len(origins)
