"""What the demo makes of the journals of its workers."""

import numpy as np
import pytest

from batchqueue.cli.demo_groups.conductor import Story
from batchqueue.cli.demo_groups.figure import draw
from batchqueue.cli.demo_groups.journal import Entry, Journal, Note, read_journal
from batchqueue.cli.demo_groups.timeline import Call, Gap, Span, Timeline, make_timeline
from batchqueue.groups import Assignment

STORY = Story(
    names=("a", "b", "c"),
    killed="a",
    killed_at=104.0,
    left_behind=(0,),
    joined="c",
    joined_at=106.0,
    began_at=100.0,
    ended_at=110.0,
)


def timeline(**journals: list[Entry]) -> Timeline:
    return make_timeline(STORY, journals)


RUN = timeline(
    a=[
        Entry(99.0, Note.ASSIGNED, 0),
        Entry(102.0, Note.BEGUN, 0, 30),
        Entry(103.0, Note.STORED, 0, 30),
        Entry(103.5, Note.BEGUN, 0, 20),
        Entry(104.5, Note.STORED, 0, 20),
        Entry(105.0, Note.LOST, 0),
    ],
    b=[
        Entry(98.0, Note.ASSIGNED, 0),
        Entry(99.0, Note.REVOKED, 0),
        Entry(98.0, Note.ASSIGNED, 1),
        Entry(105.5, Note.ASSIGNED, 0),
        Entry(106.0, Note.BEGUN, 0, 20),
        Entry(108.0, Note.STORED, 0, 20),
        Entry(108.5, Note.REVOKED, 1),
        Entry(111.0, Note.REVOKED, 0),
    ],
    c=[Entry(109.0, Note.ASSIGNED, 1)],
)


def test_spans_begin_with_the_flights_and_end_with_them_or_with_the_kill() -> None:
    assert RUN.spans == (
        Span(0, 0.0, 4.0, "a"),
        Span(0, 5.5, 10.0, "b"),
        Span(1, 0.0, 8.5, "b"),
        Span(1, 9.0, 10.0, "c"),
    )


def test_gaps_say_whether_the_owner_was_killed() -> None:
    assert RUN.gaps == [
        Gap(0, 4.0, 1.5, follows_kill=True),
        Gap(1, 8.5, 0.5, follows_kill=False),
    ]


def test_what_the_killed_worker_did_afterwards_was_only_handed_out() -> None:
    assert RUN.handed_out == 70
    assert RUN.calls == (Call("a", 2.0, 3.0, 30), Call("b", 6.0, 8.0, 20))
    assert [RUN.handled(name) for name in STORY.names] == [30, 20, 0]


def test_records_of_a_call_are_spread_over_its_time() -> None:
    edges = np.array([0.0, 2.5, 7.0, 10.0])
    assert RUN.rates("a", edges) * np.diff(edges) == pytest.approx([15, 15, 0])
    assert RUN.rates("b", edges) * np.diff(edges) == pytest.approx([0, 10, 10])


def test_joined_worker_joins_when_it_owns_a_partition() -> None:
    assert RUN.joined_at == 9.0


def test_picture_shows_partitions_without_carriers(tmp_path) -> None:
    draw(tmp_path / "run.png", RUN, {0: ["UA", "AA"], 1: []})
    assert (tmp_path / "run.png").stat().st_size > 10_000


def test_journal_of_a_killed_worker_is_read_up_to_its_torn_line(tmp_path) -> None:
    path = tmp_path / "journal"
    Journal(path).assigned([Assignment(partition=3, token=1, position=0, since=0.0)])
    with path.open("a") as torn:
        torn.write('{"at": 1.0, "no')
    [entry] = read_journal(path)
    assert (entry.note, entry.partition) == (Note.ASSIGNED, 3)


def test_worker_that_never_started_has_an_empty_journal(tmp_path) -> None:
    assert read_journal(tmp_path / "missing") == []
