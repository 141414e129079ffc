"""`Timeline`: who owned what when, and how fast, made of the journals."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from batchqueue.cli.demo_groups.conductor import Story
from batchqueue.cli.demo_groups.journal import Entry, Note


@dataclass(frozen=True)
class Span:
    """A time in which a worker owned a partition, in seconds since the run began."""

    partition: int
    began: float
    ended: float
    worker: str


@dataclass(frozen=True)
class Gap:
    """A time in which a partition had no owner, between two spans.

    Attributes:
        partition: The partition.
        began: When it began, in seconds since the run began.
        seconds: How long it lasted.
        follows_kill: Whether its owner was killed; otherwise the owner gave it up.
    """

    partition: int
    began: float
    seconds: float
    follows_kill: bool


@dataclass(frozen=True)
class Call:
    """A call of a handler that stored its records.

    Attributes:
        worker: The worker.
        began: When it began, in seconds since the run began.
        ended: When it had stored them.
        records: How many.
    """

    worker: str
    began: float
    ended: float
    records: int


@dataclass(frozen=True)
class Timeline:
    """A run. Times are in seconds since the first flight was produced.

    Attributes:
        story: What the conductor did, in seconds since the epoch.
        spans: Who owned what, by partition and time.
        calls: The calls of all handlers, by worker and time.
        handed_out: Records that handlers got, those that came again included.
    """

    story: Story
    spans: tuple[Span, ...]
    calls: tuple[Call, ...]
    handed_out: int

    @property
    def killed_at(self) -> float:
        """When the worker was killed."""
        return self.story.killed_at - self.story.began_at

    @property
    def joined_at(self) -> float:
        """When the added worker was assigned its first partition."""
        return min(span.began for span in self.spans if span.worker == self.story.joined)

    @property
    def end(self) -> float:
        """When all flights were done."""
        return self.story.ended_at - self.story.began_at

    @property
    def partitions(self) -> dict[int, list[Span]]:
        """The spans of each partition, by time."""
        found: dict[int, list[Span]] = {}
        for span in self.spans:
            found.setdefault(span.partition, []).append(span)
        return found

    @property
    def gaps(self) -> list[Gap]:
        """The times without an owner, by partition and time."""
        return [
            Gap(
                before.partition,
                before.ended,
                max(0.0, after.began - before.ended),
                follows_kill=(before.worker, before.ended) == (self.story.killed, self.killed_at),
            )
            for spans in self.partitions.values()
            for before, after in pairwise(spans)
        ]

    def handled(self, worker: str) -> int:
        """Return how many records a worker handled."""
        return sum(call.records for call in self.calls if call.worker == worker)

    def rates(self, worker: str, edges: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return how many records per second a worker handled between each two times.

        The records of a call count evenly from its begin to its end.

        Args:
            worker: The worker.
            edges: The times, ascending, one more than there are rates.
        """
        total = np.zeros(len(edges))
        for call in self.calls:
            if call.worker == worker:
                # The share of its records that were handled before each edge.
                length = max(call.ended - call.began, 1e-6)
                total += call.records * np.clip((edges - call.began) / length, 0, 1)
        rates: npt.NDArray[np.float64] = np.diff(total) / np.diff(edges)
        return rates


def make_timeline(story: Story, journals: Mapping[str, Sequence[Entry]]) -> Timeline:
    """Return the timeline of a run.

    Args:
        story: What the conductor did.
        journals: What each worker noted. What it noted after it was killed, as threads do, or after
            all flights were done, counts only as handed out.
    """
    handed_out = sum(
        entry.records
        for entries in journals.values()
        for entry in entries
        if entry.note is Note.BEGUN
    )
    zero = story.began_at
    spans: list[Span] = []
    calls: list[Call] = []
    for name, entries in journals.items():
        until = story.killed_at if name == story.killed else story.ended_at
        known = [entry for entry in entries if entry.at <= until]
        spans += _spans(name, known, zero, until)
        calls += _calls(name, known, zero)
    spans.sort(key=lambda span: (span.partition, span.began))
    return Timeline(story, tuple(spans), tuple(calls), handed_out)


def _spans(name: str, entries: Sequence[Entry], zero: float, until: float) -> Iterator[Span]:
    began: dict[int, float] = {}
    for entry in entries:
        if entry.note is Note.ASSIGNED:
            began[entry.partition] = entry.at
        elif entry.note in (Note.REVOKED, Note.LOST) and entry.partition in began:
            start = began.pop(entry.partition)
            if entry.at > zero:
                yield Span(entry.partition, max(0.0, start - zero), entry.at - zero, name)
    for partition, start in began.items():
        yield Span(partition, max(0.0, start - zero), until - zero, name)


def _calls(name: str, entries: Sequence[Entry], zero: float) -> Iterator[Call]:
    """One call at a time: a worker has a single handler."""
    begun = None
    for entry in entries:
        if entry.note is Note.BEGUN:
            begun = entry
        elif entry.note is Note.STORED and begun is not None:
            yield Call(name, begun.at - zero, entry.at - zero, entry.records)
            begun = None
