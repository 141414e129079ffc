"""Snapshots of a chain: all states together, refused by any other chain."""

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from batchqueue.aggregation import Aggregation, Count
from batchqueue.pipeline import CutError, GraphError
from batchqueue.pipeline.contract import OperatorError
from batchqueue.pipeline.graph import AggregateStep, FilterStep, MapStep, StatefulStep
from batchqueue.pipeline.operators import Chain

COUNTED = AggregateStep(Aggregation(keys=["n"], measures={"rows": Count()}), 1)

SIZE = b", 1]]"
"""How the header of a snapshot with a single state of one byte ends."""


class Total:
    """Emits the running total of all rows."""

    def __init__(self):
        self.total = 0

    def process(self, chunk):
        self.total += pc.sum(chunk["n"]).as_py()
        return numbers(self.total)

    def snapshot(self):
        return json.dumps(self.total).encode()

    def restore(self, state):
        self.total = json.loads(state)


class Seen(Total):
    """Passes values that it has not seen; its state is any bytes."""

    def __init__(self):
        self.seen = b""

    def process(self, chunk):
        new = [value for value in chunk["n"].to_pylist() if value not in self.seen]
        self.seen += bytes(new)
        return numbers(*new)

    def snapshot(self):
        return self.seen

    def restore(self, state):
        self.seen = state


def numbers(*values):
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def chain_of(*makes):
    return Chain([StatefulStep(make, None) for make in makes])


def last(batches):
    return batches[-1]["n"].to_pylist() if batches else []


class TestRoundTrip:
    def test_a_restored_chain_continues_where_the_other_was(self):
        first = chain_of(Seen, Total)
        assert last(first.process(numbers(1, 2, 2))) == [5]
        second = chain_of(Seen, Total)
        second.restore(first.snapshot())
        assert last(second.process(numbers(2, 10))) == [15]
        assert last(first.process(numbers(2, 10))) == [15]

    def test_states_may_be_empty_or_contain_any_bytes(self):
        every_byte = bytes(range(256)) * 3
        for states in ([b"", b""], [b"", every_byte], [every_byte, b"\n"], [b"\n\n", b""]):
            first, second = chain_of(Seen, Seen), chain_of(Seen, Seen)
            for chain, operator_states in ((first, states), (second, [b"?", b"?"])):
                for operator, state in zip(chain._stateful, operator_states, strict=True):
                    operator.restore(state)
            second.restore(first.snapshot())
            assert [operator.snapshot() for operator in second._stateful] == states

    def test_operators_without_state_do_not_count(self):
        def same(batch):
            return batch

        first = Chain([StatefulStep(Total, None)])
        first.process(numbers(5))
        second = Chain(
            [FilterStep(pc.field("n") > 0), StatefulStep(Total, None), MapStep(same, None, None)]
        )
        second.restore(first.snapshot())
        assert last(second.process(numbers(1))) == [6]

    def test_an_object_of_map_may_have_state(self):
        total = Total()
        chain = Chain([MapStep(total, None, None)])
        assert chain.has_state
        total.total = 7
        other = Chain([MapStep(Total(), None, None)])
        other.restore(chain.snapshot())
        assert last(other.process(numbers(1))) == [8]

    def test_another_process_restores_it(self):
        script = (
            "import sys; from test_snapshots import *; chain = chain_of(Seen, Total);"
            "chain.restore(sys.stdin.buffer.read()); print(last(chain.process(numbers(2, 10))))"
        )
        first = chain_of(Seen, Total)
        first.process(numbers(1, 2))
        paths = f"import sys; sys.path[:0] = {[__file__.rpartition('/')[0], *sys.path]};"
        found = subprocess.run(
            [sys.executable, "-c", paths + script],
            input=first.snapshot(),
            stdout=subprocess.PIPE,
            check=True,
        )
        assert found.stdout.decode().strip() == "[13]"

    def test_a_large_state(self):
        first, second = chain_of(Seen), chain_of(Seen)
        first._stateful[0].restore(bytes(20 << 20))
        second.restore(first.snapshot())
        assert len(second._stateful[0].snapshot()) == 20 << 20


class TestWithoutState:
    def test_a_chain_says_whether_it_has_some(self):
        assert chain_of(Total).has_state
        assert not Chain([FilterStep(pc.field("n") > 0), COUNTED]).has_state

    def test_its_snapshot_is_that_of_no_operators(self):
        chain = Chain([FilterStep(pc.field("n") > 0)])
        chain.restore(Chain([]).snapshot())
        with pytest.raises(CutError):
            chain.restore(chain_of(Total).snapshot())

    @pytest.mark.parametrize(
        ("kept", "lacking"), [("snapshot", "restore"), ("restore", "snapshot")]
    )
    def test_half_of_the_two_methods_is_refused(self, kept, lacking):
        class Half:
            def process(self, chunk):
                return chunk

        setattr(Half, kept, lambda self, *_: b"")
        with pytest.raises(GraphError) as raised:
            chain_of(Half)
        assert str(raised.value) == (
            f"stateful(Half): Half has `{kept}` but not `{lacking}`; define both, or neither"
        )


class TestRefusals:
    def test_of_another_chain_names_both(self):
        snapshot = chain_of(Seen, Total).snapshot()
        for makes in ((Total, Seen), (Seen,), (), (Seen, Total, Total)):
            chain = chain_of(*makes)
            with pytest.raises(CutError) as raised:
                chain.restore(snapshot)
            own = ", ".join(f"stateful({make.__name__})" for make in makes)
            assert str(raised.value) == (
                "the snapshot belongs to the operators [stateful(Seen), stateful(Total)], and the "
                f"operators with state are now [{own}]; restore the graph, or start with another "
                "checkpoint directory"
            )

    def test_leave_the_state_as_it_is(self):
        chain = chain_of(Total)
        chain.process(numbers(5))
        with pytest.raises(CutError):
            chain.restore(chain_of(Seen).snapshot())
        assert last(chain.process(numbers(1))) == [6]

    @pytest.mark.parametrize(
        "damage",
        [
            lambda data: b"",
            lambda data: b"\n",
            lambda data: data[:-1],
            lambda data: data + b"x",
            lambda data: data[:20],
            lambda data: b"[1]\n",
            lambda data: b"{}\n",
            lambda data: b"\xff" + data,
            lambda data: data.replace(b"batchqueue.chain", b"another.format"),
            lambda data: data.replace(b"Total)", b"Total)\xff"),
            lambda data: data.replace(SIZE, b", -1]]"),
            lambda data: data.replace(SIZE, b", 0]]"),
            lambda data: data.replace(SIZE, b', "1"]]'),
            lambda data: data.replace(SIZE, b", 1, 1]]"),
            lambda data: data.replace(SIZE, b"]]"),
        ],
    )
    def test_damaged_bytes(self, damage):
        data = chain_of(Total).snapshot()
        assert SIZE in data
        chain = chain_of(Total)
        with pytest.raises(
            CutError, match="not the snapshot of a chain, or a part of it is missin"
        ):
            chain.restore(damage(data))

    def test_a_negative_size(self):
        data = chain_of(Total, Total).snapshot()
        damaged = data.replace(b", 1], [", b", 3], [").replace(SIZE, b", -1]]")
        assert len(damaged) == len(data) + 1
        with pytest.raises(CutError, match="not the snapshot of a chain"):
            chain_of(Total, Total).restore(damaged)

    def test_another_version_names_both(self):
        data = chain_of(Total).snapshot().replace(b'"version": 1', b'"version": 2')
        with pytest.raises(
            CutError, match="has version 2, and this batchqueue reads version 1; install"
        ):
            chain_of(Total).restore(data)

    @pytest.mark.parametrize(
        ("state", "kind"),
        [(None, "a NoneType"), ("text", "a str"), (3, "an int"), (bytearray(b"x"), "a bytearray")],
    )
    def test_a_state_that_is_not_bytes(self, state, kind):
        class Odd(Total):
            def snapshot(self):
                return state

        with pytest.raises(OperatorError) as raised:
            chain_of(Odd).snapshot()
        assert str(raised.value) == f"the snapshot of stateful(Odd) is {kind}; return bytes"

    def test_a_restore_that_raises_is_the_cause(self):
        class Picky(Total):
            def restore(self, state):
                raise ValueError("too old")

        with pytest.raises(OperatorError, match=r"stateful\(Picky\) raised ValueError in restore:"):
            chain_of(Picky).restore(chain_of(Picky).snapshot())

    def test_a_snapshot_before_the_flush_would_lose_groups(self):
        chain = Chain([COUNTED, StatefulStep(Total, None)])
        chain.process(numbers(1, 1, 2))
        with pytest.raises(CutError) as raised:
            chain.snapshot()
        assert str(raised.value) == (
            "aggregate(rows) still has 2 groups, which a snapshot would lose; flush the chain "
            "before"
        )
        chain.flush()
        assert json.loads(chain.snapshot().partition(b"\n")[0])["operators"] == [
            ["stateful(Total)", 1]
        ]


class TestNames:
    def test_are_the_same_in_every_run(self):
        # Addresses of objects would not be.
        chains = [Chain([MapStep(Total(), None, None)]) for _ in range(2)]
        chains[1].restore(chains[0].snapshot())
        assert b"map(Total)" in chains[0].snapshot()
