"""Chains of operators: in which order they run, and how their errors are named."""

import itertools
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from batchqueue.pipeline import GraphError
from batchqueue.pipeline.contract import OperatorError
from batchqueue.pipeline.graph import FilterStep, KeyByStep, StageStep
from batchqueue.pipeline.operators import Chain
from pipeline_support.chains import error_of, found, mapped, numbers, plus, stateful


class Pairs:
    """Joins two chunks each; what has no partner waits for the flush."""

    def __init__(self):
        self.waiting = None

    def process(self, chunk):
        if self.waiting is None:
            self.waiting = chunk
            return None
        pair, self.waiting = [self.waiting, chunk], None
        return pa.concat_batches(pair)

    def flush(self):
        waiting, self.waiting = self.waiting, None
        return [] if waiting is None else [waiting]


class TestOrder:
    def test_operators_run_in_the_order_of_the_graph(self):
        steps = [mapped(plus(1)), FilterStep(pc.field("n") > 2), mapped(plus(10))]
        assert found(Chain(steps).process(numbers(1, 2, 3))) == [13, 14]

    def test_a_chain_without_operators_passes_chunks(self):
        chunk = numbers(1)
        assert Chain([]).process(chunk) == [chunk]
        assert Chain([]).process(numbers()) == []
        assert Chain([]).flush() == []

    def test_more_operators_than_python_nests_calls(self):
        assert found(Chain([mapped(plus(1))] * 2_000).process(numbers(0))) == [2_000]

    def test_each_output_takes_its_way_before_the_next_is_made(self):
        made = []

        def endless(batch):
            for number in itertools.count():
                made.append(number)
                yield numbers(number)

        outputs = Chain([mapped(endless), mapped(plus(1))]).outputs(numbers(0))
        assert found(itertools.islice(outputs, 3)) == [1, 2, 3]
        assert made == [0, 1, 2]

    def test_flushed_batches_pass_through_the_operators_behind(self):
        chain = Chain([mapped(Pairs()), mapped(plus(10)), stateful(Pairs), mapped(plus(100))])
        assert found(chain.process(numbers(1))) == []
        assert found(chain.process(numbers(2))) == []
        assert found(chain.process(numbers(3))) == []
        # 1 and 2 wait in the second, 3 in the first; 3 makes them a pair.
        assert found(chain.flush()) == [111, 112, 113]
        assert chain.flush() == []

    def test_a_flush_ends_with_that_of_the_last_operator(self):
        chain = Chain([mapped(Pairs()), mapped(Pairs())])
        chain.process(numbers(1))
        assert found(chain.flush()) == [1]

    def test_a_filter_also_sees_what_is_flushed(self):
        chain = Chain([mapped(Pairs()), FilterStep(pc.field("n") > 1)])
        chain.process(numbers(1, 2))
        assert found(chain.flush()) == [2]

    def test_keeps_rows_only_if_an_operator_can_be_flushed(self):
        assert not Chain([mapped(plus(1)), FilterStep(pc.scalar(True))]).keeps_rows
        assert Chain([mapped(plus(1)), stateful(Pairs)]).keeps_rows


class TestErrors:
    def test_what_a_function_raises_is_the_cause(self):
        def enrich(batch):
            raise KeyError("city")

        error = error_of(Chain([mapped(plus(1)), mapped(enrich), mapped(plus(1))]))
        assert str(error) == "map(enrich) raised KeyError: 'city'"
        assert error.operator == "map(enrich)"
        assert isinstance(error.__cause__, KeyError)
        assert error.cause is error.__cause__

    def test_a_generator_that_raises_is_named_and_not_those_around_it(self):
        def generate(batch):
            yield batch
            raise ValueError("boom")

        chain = Chain([mapped(plus(0)), mapped(generate), mapped(plus(1))])
        outputs = chain.outputs(numbers(1))
        assert found([next(outputs)]) == [2]
        with pytest.raises(OperatorError, match=r"^map\(generate\) raised ValueError: boom$"):
            next(outputs)

    def test_an_operator_behind_a_generator_is_named(self):
        def generate(batch):
            yield batch

        def fail(batch):
            raise ValueError("boom")

        error = error_of(Chain([mapped(generate), mapped(fail)]))
        assert str(error) == "map(fail) raised ValueError: boom"

    @pytest.mark.parametrize("stop", [StopIteration, GeneratorExit])
    def test_an_exception_that_python_uses_itself_does_not_end_the_rows_silently(self, stop):
        def fail(batch):
            raise stop

        with pytest.raises((OperatorError, stop)):
            Chain([mapped(fail)]).process(numbers(1))

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
    def test_requests_to_exit_pass_as_they_are(self, kind):
        def leave(batch):
            raise kind

        with pytest.raises(kind):
            Chain([mapped(leave)]).process(numbers(1))

    @pytest.mark.parametrize(
        ("method", "call"),
        [
            ("flush", lambda chain: chain.flush()),
            ("snapshot", lambda chain: chain.snapshot()),
            ("on_pause", lambda chain: chain.pause("slow sink")),
            ("on_resume", lambda chain: chain.resume()),
        ],
    )
    def test_other_methods_are_named(self, method, call):
        class Broken:
            def process(self, chunk):
                return chunk

            def restore(self, state):
                pass

            def snapshot(self):
                return b""

        def fail(self, *_):
            raise OSError("disk full")

        setattr(Broken, method, fail)
        with pytest.raises(OperatorError) as raised:
            call(Chain([stateful(Broken)]))
        assert str(raised.value) == f"stateful(Broken) raised OSError in {method}: disk full"
        assert isinstance(raised.value.__cause__, OSError)

    def test_a_generator_of_flush_is_named(self):
        class Broken:
            def process(self, chunk):
                return None

            def flush(self):
                yield numbers(1)
                raise OSError("disk full")

        with pytest.raises(OperatorError, match=r"map\(Broken\) raised OSError in flush: disk"):
            Chain([mapped(Broken())]).flush()


class TestMaking:
    def test_each_chain_has_its_own_instances(self):
        step = stateful(Pairs)
        first, second = Chain([step]), Chain([step])
        first.process(numbers(1))
        assert second.flush() == []
        assert found(first.flush()) == [1]

    def test_make_may_return_a_function(self):
        assert found(Chain([stateful(partial(plus, 5))]).process(numbers(1))) == [6]

    def test_a_make_that_raises_is_the_cause(self):
        def make():
            raise OSError("no model")

        with pytest.raises(OperatorError) as raised:
            Chain([stateful(make)])
        assert str(raised.value) == "stateful(make) could not be made: OSError: no model"
        assert isinstance(raised.value.__cause__, OSError)

    @pytest.mark.parametrize(
        "made", [None, 3, Pairs, object()], ids=["None", "3", "a class", "an object"]
    )
    def test_a_make_that_does_not_make_an_operator_is_refused(self, made):
        def make():
            return made

        with pytest.raises(GraphError, match=r"^stateful\(make\) made .*; it must make an object"):
            Chain([stateful(make)])

    @pytest.mark.parametrize("step", [KeyByStep(("k",), 2, None), StageStep("s", None)])
    def test_steps_that_begin_a_stage_are_refused(self, step):
        with pytest.raises(GraphError, match="cannot run inside a chain"):
            Chain([step])


class TestPause:
    def test_operators_that_ask_are_notified_in_order(self):
        events = []

        class Timed:
            def __init__(self, name):
                self.name = name

            def process(self, chunk):
                return chunk

            def on_pause(self, reason):
                events.append((self.name, reason))

            def on_resume(self):
                events.append((self.name, "resumed"))

        chain = Chain([mapped(Timed("a")), mapped(plus(0)), stateful(lambda: Timed("b"))])
        chain.pause("slow sink")
        chain.resume()
        assert events == [
            ("a", "slow sink"),
            ("b", "slow sink"),
            ("a", "resumed"),
            ("b", "resumed"),
        ]

    def test_rows_that_wait_survive_it(self):
        chain = Chain([mapped(Pairs())])
        chain.process(numbers(1))
        chain.pause("x")
        chain.resume()
        assert found(chain.flush()) == [1]
