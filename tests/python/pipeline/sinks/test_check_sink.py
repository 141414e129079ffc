"""`check_sink` accepts a right sink, and finds a violation of each rule and names it."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from batchqueue.pipeline.testing import check_sink


class Good:
    """Keeps what is visible in a list, and the last cut in another one."""

    batch_rows = 100

    def __init__(self, visible: list, cuts: list):
        self.visible, self.cuts, self.written = visible, cuts, []

    def write(self, chunks):
        for chunk in chunks:
            self.written += chunk.to_pylist()

    def commit(self, cut, positions):
        self.visible += self.written
        self.written = []
        self.cuts.append((cut, json.loads(json.dumps(positions))))

    def last_cut(self):
        return self.cuts[-1] if self.cuts else None


class Appending:
    """Has no cuts."""

    batch_rows = 1

    def __init__(self, visible: list, cuts: list):
        self.visible = visible

    def write(self, chunks):
        for chunk in chunks:
            self.visible += chunk.to_pylist()


@pytest.mark.parametrize("kind", [Good, Appending])
@pytest.mark.parametrize("reads", [True, False])
def test_right_sink_passes(kind, reads: bool):
    visible, cuts = [], []
    check_sink(lambda: kind(visible, cuts), read=(lambda: visible) if reads else None)


class NoRows(Good):
    batch_rows = 0


class WritesImmediately(Good):
    def write(self, chunks):
        Appending.write(self, chunks)


class KeepsRowsOfTheDead(Good):
    """What was written before a crash is committed by the next instance."""

    def __init__(self, visible, cuts):
        super().__init__(visible, cuts)
        self.written = self.visible_later = getattr(cuts, "left", [])
        cuts.left = self.written

    def write(self, chunks):
        super().write(chunks)
        self.cuts.left = self.written

    def commit(self, cut, positions):
        super().commit(cut, positions)
        self.cuts.left = []


class ForgetsEmptyCuts(Good):
    def commit(self, cut, positions):
        if self.written:
            super().commit(cut, positions)


class ForgetsCuts(Good):
    def __init__(self, visible, cuts):
        super().__init__(visible, [])


class KeepsOneSource(Good):
    def commit(self, cut, positions):
        super().commit(cut, dict(list(positions.items())[:1]))


class RemovesPositions(Good):
    """Changes the positions that it is given, and keeps them so."""

    def commit(self, cut, positions):
        for name in list(positions)[1:]:
            del positions[name]
        super().commit(cut, positions)


class TruncatesPositions(Good):
    def commit(self, cut, positions):
        super().commit(cut, {name: at for name, at in positions.items() if len(str(at)) < 4_096})


class CommitsLastChunkOnly(Good):
    def write(self, chunks):
        for chunk in chunks:
            self.written = chunk.to_pylist()


class BeginsWithACut(Good):
    def last_cut(self):
        return super().last_cut() or (0, {})


class WritesTwice(Appending):
    def write(self, chunks):
        super().write([*chunks, *chunks])


class Cuts(list):
    """A list that takes attributes."""


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (NoRows, "batch_rows is 0"),
        (WritesImmediately, "readers see 500 rows after a write without commit and a crash"),
        (KeepsRowsOfTheDead, "readers see 1,000 rows after cut 1.*must see 500"),
        (ForgetsEmptyCuts, r"must be cut 3"),
        (ForgetsCuts, "is None after cut 1 and a crash; it must be cut 1"),
        (KeepsOneSource, r"after commit\(2, ...\); it must be cut 2 with its positions"),
        (RemovesPositions, r"after commit\(2, ...\); it must be cut 2 with its positions"),
        (TruncatesPositions, r"after commit\(2, ...\); it must be cut 2 with its positions"),
        (CommitsLastChunkOnly, "readers see .* must see 1038"),
        (BeginsWithACut, "of an empty place; it must be None"),
        (WritesTwice, "readers see 2,076 rows after write"),
    ],
)
def test_violation_is_found_and_named(kind, message: str):
    visible, cuts = [], Cuts()
    with pytest.raises(AssertionError, match=f"sink {kind.__name__}: .*{message}"):
        check_sink(lambda: kind(visible, cuts), read=lambda: visible)


def test_sink_is_opened_first_and_gets_the_chunks_that_are_given():
    opened, chunks = [], [pa.record_batch({"x": [number]}) for number in range(3)]
    visible, cuts = [], []

    class Opened(Good):
        def open(self, pipeline):
            opened.append(pipeline)

        def write(self, chunks):
            assert opened
            super().write(chunks)

    check_sink(lambda: Opened(visible, cuts), chunks=chunks, read=lambda: visible)
    assert visible == [{"x": 0}, {"x": 1}, {"x": 2}]
    assert len(set(opened)) == 1


def test_too_few_chunks_and_what_is_not_a_sink_are_refused(tmp_path: Path):
    with pytest.raises(AssertionError, match="give at least two"):
        check_sink(lambda: Good([], []), chunks=[])
    with pytest.raises(AssertionError, match="is not a sink"):
        check_sink(lambda: tmp_path)
