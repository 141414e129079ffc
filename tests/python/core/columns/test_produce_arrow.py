"""`produce_arrow`: rows of Arrow data, split by a column, against pyarrow's own filter."""

import duckdb
import nanoarrow
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchqueue import (
    BatchQueue,
    ConfigError,
    PartitionPolicy,
    PartitionSelector,
)
from core_support.columns import Rows, record_batch, table
from core_support.queues import assert_conserved, config
from core_support.scripts import run_script
from core_support.waits import WAIT_S

INTEGERS = [
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
]
STRINGS = [pa.string(), pa.large_string(), pa.string_view()]


@pytest.fixture
def collect(make_queue):
    """Returns a function that runs data through a queue with a handler per tag.

    It returns the handlers by tag, and the statistics.
    """

    def run(data, tags, **options):
        queue = make_queue(partitions=PartitionPolicy.adaptive(), **options)
        handlers = {tag: Rows() for tag in tags}
        for tag, handler in handlers.items():
            queue.add_handler(tag, handler)
        accepted = queue.produce_arrow(data, type_column="tag")
        queue.shutdown(WAIT_S)
        stats = queue.stats()
        assert accepted == stats.produced
        assert_conserved(stats)
        return handlers, stats

    return run


def expected(data, tag):
    column = pc.cast(
        pc.cast(data["tag"], pa.string())
        if pa.types.is_dictionary(data["tag"].type)
        else data["tag"],
        pa.string(),
    )
    return data.filter(pc.equal(column, tag))["number"].to_pylist()


@pytest.mark.parametrize("tag_type", INTEGERS + STRINGS, ids=str)
@pytest.mark.parametrize("dictionary", [False, True], ids=["plain", "dictionary"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_each_tag_gets_its_rows_in_order(tag_type, dictionary, data):
    texts = (
        ["0", "1", "7", "100"]
        if pa.types.is_integer(tag_type)
        else ["", "a", "ä€", "seven77", "eight888", "a" * 16, "b" * 40]
    )
    drawn = data.draw(st.lists(st.sampled_from([*texts, None]), max_size=300))
    runs = data.draw(st.integers(1, 300))
    values = [value for value in drawn for _ in range(runs if len(drawn) < 20 else 1)]
    column = pa.array(
        [
            value if value is None or not pa.types.is_integer(tag_type) else int(value)
            for value in values
        ],
        tag_type,
    )
    if dictionary:
        # pyarrow cannot make dictionaries of string views.
        column = pa.array(
            column.to_pylist(), pa.string() if tag_type == pa.string_view() else tag_type
        ).dictionary_encode()
    source = pa.table({"tag": column, "number": pa.array(range(len(column)), pa.int64())})
    known = texts[:-1]
    with BatchQueue("split", config(partitions=PartitionPolicy.adaptive())) as queue:
        handlers = {tag: Rows() for tag in known}
        for tag, handler in handlers.items():
            queue.add_handler(tag, handler)
        assert queue.produce_arrow(source, type_column="tag") == len(values)
    for tag, handler in handlers.items():
        assert handler.numbers == [row for row, value in enumerate(values) if value == tag]
        assert all(
            set(map(str, batch.column("tag").to_pylist())) == {tag} for batch in handler.batches
        )
    stats = queue.stats()
    assert_conserved(stats)
    assert stats.unhandled == sum(value not in known for value in values)


@pytest.mark.parametrize(
    "make",
    [
        lambda data: data,
        lambda data: data.to_reader(max_chunksize=300),
        lambda data: data.combine_chunks().to_batches()[0],
        polars.from_arrow,
        lambda data: duckdb.sql("SELECT * FROM data"),
        nanoarrow.ArrayStream,
    ],
    ids=["table", "reader", "record batch", "polars", "duckdb", "nanoarrow"],
)
def test_data_of_every_library_is_accepted(collect, make):
    source = table([["a", "b", "c"][number % 3] for number in range(1_000)])
    handlers, stats = collect(make(source), ["a", "b"])
    assert handlers["a"].numbers == expected(source, "a")
    assert handlers["b"].numbers == expected(source, "b")
    assert (stats.consumed, stats.unhandled) == (667, 333)
    assert stats.handlers()["a"].consumed == 334
    assert {
        tag for index in range(stats.partition_count) for tag in stats.partition(index).types
    } == {
        "a",
        "b",
    }


def test_large_table_is_cut_and_every_value_arrives(collect):
    rows = 200_000
    source = table(
        [f"type {number * number % 37}" for number in range(rows)], value=pa.array(range(rows))
    )
    tags = [f"type {number}" for number in range(37)]
    handlers, stats = collect(source, tags, threads=2)
    assert sum(handler_sum(handlers[tag]) for tag in tags) == rows * (rows - 1) // 2
    for tag in tags:
        assert handlers[tag].numbers == expected(source, tag)
        assert all(batch.num_rows <= 65_536 for batch in handlers[tag].batches)
    assert stats.consumed == rows


def handler_sum(handler):
    return sum(pc.sum(batch.column("value")).as_py() for batch in handler.batches)


def test_rows_of_one_tag_are_not_copied(collect):
    source = record_batch(["a"] * 1_000)
    handlers, _ = collect(source, ["a"])
    (batch,) = handlers["a"].batches
    assert isinstance(batch, pa.RecordBatch)
    assert (
        batch.column("number").buffers()[1].address == source.column("number").buffers()[1].address
    )


def test_other_columns_of_every_type_arrive(collect):
    tags = ["a", "b"] * 50
    source = table(
        tags,
        texts=[None if number % 7 == 0 else str(number) for number in range(100)],
        lists=[[number] * (number % 3) for number in range(100)],
        structs=[{"x": number, "y": str(number)} for number in range(100)],
        flags=[number % 3 == 0 for number in range(100)],
    )
    handlers, _ = collect(source, ["a", "b"])
    for tag in "ab":
        assert (
            pa.Table.from_batches(handlers[tag].batches)
            == source.filter(pc.equal(source["tag"], tag)).combine_chunks()
        )


def test_factory_spreads_the_rows_of_a_tag(make_queue):
    queue, made = make_queue(threads=2, partitions=4), []

    def factory():
        made.append(Rows())
        return made[-1]

    queue.add_handler_factory("a", factory, partitions=4)
    for _ in range(8):
        queue.produce_arrow(record_batch(["a"] * 10), type_column="tag")
    queue.shutdown(WAIT_S)
    assert [len(rows.numbers) for rows in made] == [20, 20, 20, 20]


def test_one_consumer_takes_objects_and_rows(make_queue):
    seen = []
    queue = make_queue(consumer=seen.extend)
    queue.produce("an object")
    queue.produce_arrow(record_batch(["a", "a"]), type_column="tag")
    queue.shutdown(WAIT_S)
    assert seen[0] == "an object"
    assert seen[1].column("number").to_pylist() == [0, 1]
    assert queue.stats().consumed == 3


def test_tag_is_not_the_class_str(make_queue):
    rows, texts = Rows(), []
    queue = make_queue()
    queue.add_handler("str", rows)
    queue.add_handler(str, texts.extend)
    queue.produce("str")
    queue.produce_arrow(record_batch(["str"]), type_column="tag")
    queue.shutdown(WAIT_S)
    assert (texts, rows.numbers) == (["str"], [0])
    assert set(queue.stats().handlers()) == {"str", str}


def test_removed_tag_is_unhandled_and_can_come_back(make_queue):
    rows = Rows()
    queue = make_queue()
    assert queue.remove_handler("a") is False
    queue.add_handler("a", rows)
    assert queue.remove_handler("a") is True
    queue.produce_arrow(record_batch(["a"]), type_column="tag")
    assert queue.flush(WAIT_S)
    queue.add_handler("a", rows)
    queue.produce_arrow(record_batch(["a", "a"]), type_column="tag")
    queue.shutdown(WAIT_S)
    assert (rows.numbers, queue.stats().unhandled) == ([0, 1], 1)


@pytest.mark.parametrize("rows", [[], ["a"]])
def test_empty_data_enqueues_nothing(make_queue, rows):
    queue = make_queue()
    data = table(pa.array(rows, pa.string())).slice(0, 0)
    assert queue.produce_arrow(data, type_column="tag") == 0
    assert queue.stats().attempts == 0


out_of_range = pa.DictionaryArray.from_arrays(pa.array([0, 7]), pa.array(["a"]), safe=False)


@pytest.mark.parametrize(
    ("data", "column", "message"),
    [
        (pa.array([1]), "tag", r"batch is a .*Int64Array, not a record batch"),
        (5, "tag", r"batch is an int; give an object with __arrow_c_array__ or __arrow_c_stream__"),
        ([1, 2], "tag", r"batch is a list"),
        (
            table(["a"]),
            "kind",
            r'type_column is "kind"; the data has the columns \["tag", "number"\]',
        ),
        (
            table([1.5]),
            "tag",
            r'type_column "tag" is of type Float64; give a column of strings, of integers',
        ),
        (table([True]), "tag", r"Boolean"),
        (table(pa.array([1.5]).dictionary_encode()), "tag", r"Dictionary"),
        (
            table(out_of_range),
            "tag",
            r'"tag" could not be split: .*index 7 is outside a dictionary of 1 values; check',
        ),
    ],
    ids=[
        "array",
        "int",
        "list",
        "column",
        "float",
        "bool",
        "dictionary of floats",
        "index out of range",
    ],
)
def test_data_that_cannot_be_split_is_refused(make_queue, data, column, message):
    queue = make_queue()
    with pytest.raises(ConfigError, match=message):
        queue.produce_arrow(data, type_column=column)
    assert queue.stats().attempts == 0


@pytest.mark.parametrize(
    "selector", [PartitionSelector.by_key(id), PartitionSelector.custom(lambda item, count: 0)]
)
def test_python_selector_is_refused_for_rows(make_queue, selector):
    with pytest.raises(ConfigError, match=r"by_key or custom selector.*by_type or round_robin"):
        make_queue(selector=selector).produce_arrow(table(["a"]), type_column="tag")


def test_bytes_behind_a_null_are_not_read_as_text(collect):
    offsets = pa.py_buffer(bytes(pa.array([0, 1, 3, 4, 5], pa.int32()).buffers()[1]))
    texts = pa.StringArray.from_buffers(
        4, offsets, pa.py_buffer(b"a\xff\xfebc"), pa.py_buffer(bytes([0b1101]))
    )
    source = pa.record_batch(
        {"tag": ["a", "b", "a", "b"], "number": pa.array(range(4)), "text": texts}
    )
    handlers, _ = collect(source, ["a", "b"])
    assert [batch["text"].to_pylist() for batch in handlers["a"].batches] == [["a", "b"]]
    assert [batch["text"].to_pylist() for batch in handlers["b"].batches] == [[None, "c"]]


def test_package_does_not_import_slow_libraries():
    slow = ("pyarrow", "numpy", "polars", "pandas", "asyncio", "html", "pathlib", "random")
    script = f"print([name for name in {slow} if name in sys.modules])"
    code, lines, err = run_script(script, header="import sys, batchqueue\n")
    assert (code, lines) == (0, ["[]"]), err


def test_handlers_get_objects_of_the_arrow_protocol_without_pyarrow():
    code, lines, err = run_script("""
        sys.modules["pyarrow"] = None
        import polars
        seen = []
        with BatchQueue("q", config()) as queue:
            queue.add_handler("a", seen.extend)
            frame = polars.DataFrame({"tag": ["a", "b", "a"], "n": [1, 2, 3]})
            queue.produce_arrow(frame, type_column="tag")
        (batch,) = seen
        print(batch.num_rows, polars.DataFrame(batch)["n"].to_list())
    """)
    assert (code, lines) == (0, ["2 [1, 3]"]), err
