"""`Aggregator` as a handler: without the interpreter, with limits and failures, beside others."""

import gc
import os
import pickle
import weakref

import pyarrow as pa
import pytest

from aggregation_support import TOTALS, WAIT_S, rows, run_script, totals
from batchqueue import (
    ConfigError,
    PartitionPolicy,
    PartitionSelector,
    RetryPolicy,
)
from batchqueue.aggregation import (
    Aggregation,
    Aggregator,
    Count,
    First,
    Quantiles,
    Sum,
    TopN,
    Window,
)


def test_drain_threads_aggregate_while_another_thread_keeps_the_interpreter():
    # Between two checks of the counts the main thread never releases the interpreter; a switch
    # interval of hours keeps it from being forced to.
    script = """
        import sys
        import pyarrow as pa
        from batchqueue import BatchQueue, BatchQueueConfig, PartitionPolicy, ThreadPolicy
        from batchqueue.aggregation import Aggregation, Aggregator, Count

        policy = PartitionPolicy.adaptive()
        queue = BatchQueue("q", BatchQueueConfig(threads=ThreadPolicy.fixed(2), partitions=policy))
        aggregation = Aggregation(keys=["k"], measures={"n": Count()})
        handlers = {tag: Aggregator(aggregation) for tag in "ab"}
        for tag, handler in handlers.items():
            queue.add_handler(tag, handler)
        data = pa.table({"tag": ["a", "b"] * 5_000, "k": [1, 2] * 5_000})
        queue.produce_arrow(data, type_column="tag")
        queue.flush()
        sys.setswitchinterval(10_000)
        for _ in range(20):
            queue.produce_arrow(data, type_column="tag")
        while queue.stats().consumed < 210_000:
            pass
        print({tag: handler.result().to_pylist() for tag, handler in handlers.items()})
    """
    assert run_script(script) == b"{'a': [{'k': 1, 'n': 105000}], 'b': [{'k': 2, 'n': 105000}]}\n"


@pytest.mark.parametrize("selector", [PartitionSelector.by_type(), PartitionSelector.round_robin()])
@pytest.mark.parametrize("partitions", [1, 4])
def test_aggregator_works_beside_handlers_in_python(make_queue, selector, partitions):
    queue = make_queue(threads=2, partitions=PartitionPolicy.fixed(partitions), selector=selector)
    aggregator, numbers, batches = Aggregator(TOTALS), [], []
    queue.add_handler("a", aggregator)
    queue.add_handler("b", batches.extend)
    queue.add_handler(int, numbers.extend)
    for _ in range(50):
        queue.produce_arrow(
            pa.concat_tables([rows([1, 2]), rows([3], "b"), rows([4], "unknown")]),
            type_column="tag",
        )
        queue.produce_many(range(10))
        queue.produce("unknown")
    queue.shutdown(WAIT_S)
    stats = queue.stats()
    assert totals(aggregator) == {1: (50, 0), 2: (50, 50)}
    assert sum(batch.num_rows for batch in batches) == 50
    assert sorted(numbers) == sorted([*range(10)] * 50)
    assert (stats.consumed, stats.unhandled, stats.failed) == (650, 100, 0)


def test_one_aggregator_for_many_tags_on_many_threads(make_queue):
    queue = make_queue(threads=4, partitions=PartitionPolicy.adaptive())
    aggregator = Aggregator(
        Aggregation(keys=["tag"], measures={"n": Count(), "total": Sum("value")})
    )
    tags = [f"tag {number}" for number in range(40)]
    for tag in tags:
        queue.add_handler(tag, aggregator)
    data = pa.table({"tag": tags * 100, "value": range(4_000)})
    for _ in range(5):
        assert queue.produce_arrow(data, type_column="tag") == 4_000
    queue.shutdown(WAIT_S)
    wanted = data.group_by("tag").aggregate([("value", "sum")]).to_pylist()
    found = {row["tag"]: (row["n"], row["total"]) for row in aggregator.result().to_pylist()}
    assert found == {row["tag"]: (500, 5 * row["value_sum"]) for row in wanted}


def test_aggregator_works_as_the_only_consumer(make_queue):
    errors = []
    aggregator = Aggregator(TOTALS)
    queue = make_queue(
        consumer=aggregator, error_handler=lambda batch, error: errors.append((batch, str(error)))
    )
    queue.produce_arrow(rows([1, 1]), type_column="tag")
    queue.flush()
    queue.produce(7)
    queue.shutdown(WAIT_S)
    assert totals(aggregator) == {1: (2, 1)}
    assert [batch for batch, _ in errors] == [[7]]
    assert "takes rows of Arrow data" in errors[0][1]
    assert (queue.stats().consumed, queue.stats().failed) == (2, 1)


def test_batch_that_cannot_be_added_fails_as_a_whole_and_changes_nothing(make_queue):
    errors = []
    queue = make_queue(
        error_handler=lambda batch, error: errors.append((batch, error)),
        retry=RetryPolicy(attempts=3, backoff_ms=0),
    )
    aggregator = Aggregator(TOTALS)
    queue.add_handler("a", aggregator)
    queue.produce_arrow(rows([1, 2]), type_column="tag")
    queue.flush()
    for wrong in (rows(["text"]), rows([1]).drop_columns(["value"])):
        queue.produce_arrow(wrong, type_column="tag")
        queue.flush()
    queue.shutdown(WAIT_S)
    assert totals(aggregator) == {1: (1, 0), 2: (1, 1)}
    assert (queue.stats().consumed, queue.stats().failed) == (2, 2)
    messages = [str(error) for _, error in errors]
    assert messages[0] == 'column "key" is of type Utf8; give Int64, as before, or cast it first'
    assert messages[1] == 'column "value" is missing; the data has ["tag", "key"]'
    assert all(isinstance(error, ConfigError) for _, error in errors)
    assert errors[0][0][0].to_pylist() == [{"tag": "a", "key": "text", "value": 0}]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_child_gets_an_error_and_does_not_hang():
    script = """
        import os, warnings
        from batchqueue import QueueForkedError
        from batchqueue.aggregation import Aggregation, Aggregator, Count
        warnings.simplefilter("ignore")
        aggregator = Aggregator(Aggregation(keys=[], measures={"n": Count()}))
        child = os.fork()
        if child == 0:
            calls = [aggregator.result, aggregator.partials, aggregator.flush]
            calls.append(lambda: len(aggregator))
            for call in calls:
                try:
                    call()
                except QueueForkedError:
                    continue
                os._exit(1)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), aggregator.result())
    """
    assert run_script(script) == b"0 None\n"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Aggregation(keys="key", measures={"n": Count()}), "keys is 'key'; give a list"),
        (lambda: Aggregation(keys=["key"], measures={}), "measures is empty"),
        (lambda: Aggregation(keys=["key"], measures={"n": Count}), "measure 'n' is <class"),
        (
            lambda: Aggregation(keys=["n"], measures={"n": Count()}),
            "'n' is the name of two columns",
        ),
        (
            lambda: Aggregation(keys=["t"], window=Window("t", 60), measures={"n": Count()}),
            "'t' is the name of two",
        ),
        (lambda: Aggregation(keys=[""], measures={"n": Count()}), "give a str that is not empty"),
        (
            lambda: Aggregation(keys=[], measures={"n": Count()}, max_groups=0),
            "max_groups is 0; give 1",
        ),
        (lambda: Window("t", 0), "the window is 0 s"),
        (lambda: Window("t", float("nan")), "the window is nan s"),
        (lambda: Window("t", "60"), "the window is '60' s; give a number"),
        (lambda: Sum(None), "column of Sum is None; give the name of a column"),
        (lambda: First("v", None), "by of First is None"),
        (lambda: TopN("v", 3, 5), "label of TopN is 5"),
        (lambda: Quantiles("v", 0.5), "quantiles is 0.5; give a list"),
        (lambda: Aggregator(TOTALS, flush_period_ms=1e22), "flush_period_ms is 1e\\+22; give 0 to"),
        (lambda: Quantiles("v", []), "give at least one"),
        (lambda: Quantiles("v", [1.5]), "each from 0 to 1"),
        (lambda: TopN("v", 0), "n is 0; give 1"),
        (lambda: Aggregator("no"), "aggregation is a str"),
        (lambda: Aggregator(TOTALS, 5), "next_worker is 5"),
        (lambda: Aggregator(TOTALS, flush_period_ms=-1), "flush_period_ms is -1"),
        (lambda: Aggregator(TOTALS).update([1]), "give an object with __arrow_c_array__"),
        (
            lambda: Aggregator(TOTALS).update(pa.table({"key": [[1]], "value": [1]})),
            'column "key" is of type List',
        ),
        (
            lambda: Aggregator(TOTALS).update(pa.table({"key": [1], "value": ["a"]})),
            "give a column of numbers",
        ),
    ],
)
def test_invalid_arguments_are_rejected(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_subclass_may_handle_batches_itself(make_queue):
    class Seen(Aggregator):
        def consume(self, batch):
            self.seen = [part.num_rows for part in batch]
            super().consume(batch)

    aggregator = Seen(TOTALS)
    queue = make_queue()
    queue.add_handler("a", aggregator)
    queue.produce_arrow(rows([1, 2]), type_column="tag")
    queue.shutdown(WAIT_S)
    assert aggregator.seen == [2]
    assert totals(aggregator) == {1: (1, 0), 2: (1, 1)}


def test_aggregator_in_a_cycle_is_collected():
    class Next:
        def take(self, partials):
            pass

    worker = Next()
    worker.aggregator = Aggregator(TOTALS, worker.take)
    gone = weakref.ref(worker)
    del worker
    gc.collect()
    assert gone() is None


def test_aggregator_has_a_repr_and_does_not_pickle():
    aggregator = Aggregator(TOTALS)
    assert repr(aggregator) == "<Aggregator of n, total by key: 0 groups>"
    assert aggregator
    assert pickle.loads(pickle.dumps(TOTALS)) == TOTALS
    with pytest.raises(TypeError):
        pickle.dumps(aggregator)
