"""What monitors and commands do with a group on Redis."""

import pytest

from batchqueue.groups.backend import CommitRequest, Fetch, NewRecord, Opening, SetAside
from batchqueue.groups.messages import Entry, EventKind, Incarnation, Member
from batchqueue.groups.record import Start


@pytest.fixture
def administration(streams):
    administration = streams.open_administration("g")
    yield administration
    administration.close()


@pytest.fixture
def session(connection):
    """A member that joined as `a`."""
    group = connection._group
    member = Member("a", Incarnation(1, 1), host="h", pid=7)
    group.join("a:1", 60_000, member, 4, asked_us=group.time())
    return "a:1"


def test_stream_that_is_new(administration):
    assert administration.partitions() == 0
    assert administration.group().members == {}
    assert administration.history(0) == []
    assert administration.drain("ghost") is False
    assert administration.trim() == 0


def test_members_and_history(administration, session):
    group = administration.group()

    assert group.members[session].member == Member("a", Incarnation(1, 1), host="h", pid=7)
    assert 0 < group.members[session].lease_left_ms <= 60_000
    assert administration.drain(session) is True
    assert administration.group().members[session].member.leaving
    events = administration.history(0)
    assert [event.kind for event in events] == [EventKind.JOIN, EventKind.LEAVING]
    assert administration.history(events[0].version) == events[1:]


def test_lag_of_each_partition(administration, connection, writer):
    offsets = writer.add([NewRecord(1, b"x") for _ in range(5)], None)
    connection.open([Opening(1, 7, "s")], Start.EARLIEST)
    connection.commit([CommitRequest(1, 7, "s", offsets[2], 3)])

    before, info = administration.infos([0, 1])
    assert (before.token, before.lag) == (0, 0)
    assert (info.token, info.session, info.offset, info.end) == (7, "s", offsets[2], offsets[4])
    assert (info.lag, info.length, info.dead) == (2, 5, 0)


def test_lag_is_not_known_after_a_deletion(administration, connection, writer, client):
    writer.add([NewRecord(0, b"x") for _ in range(3)], None)
    connection.open([Opening(0, 7, "s")], Start.EARLIEST)
    [(second, _)] = client.xrange("bq:{orders/0}:s", count=2)[1:]
    client.xdel("bq:{orders/0}:s", second)

    assert administration.infos([0])[0].lag is None


def test_trim_waits_for_every_group(administration, streams, connection, writer):
    offsets = writer.add([NewRecord(0, b"x") for _ in range(5)], None)
    other = streams.connect("h", lease_ms=60_000, name="b")
    other.partitions(4)
    for each, done in ((connection, 3), (other, 2)):
        assert administration.trim() == 0
        each.open([Opening(0, 1, "s")], Start.EARLIEST)
        each.commit([CommitRequest(0, 1, "s", offsets[done - 1], done)])
    other.close()

    assert administration.trim() == 2
    info = administration.infos([0])[0]
    assert (info.length, info.added, info.lag) == (3, 5, 2)


def test_resize_reaches_every_group(administration, streams, connection, session):
    assert administration.resize(9) == 9
    assert administration.resize(5) == 9
    assert administration.partitions() == 9
    assert connection.partitions(None) == 9
    events = administration.history(0)
    assert [event.kind for event in events] == [EventKind.JOIN, EventKind.RESIZE]


def test_reset_moves_a_group(administration, connection, writer):
    offsets = writer.add([NewRecord(0, b"x") for _ in range(5)], None)
    connection.open([Opening(0, 1, "s")], Start.LATEST)

    administration.reset(0, offsets[0], 1)
    assert administration.infos([0])[0].lag == 4
    [opened] = connection.open([Opening(0, 2, "s")], Start.LATEST)
    assert (opened.offset, opened.done) == (offsets[0], 1)


def test_dead_letters_are_sent_back(administration, connection, writer):
    offsets = writer.add([NewRecord(0, b"%d" % number) for number in range(3)], None)
    letters = tuple(Entry(offset, b"bad", b"k", (("dead-tries", b"3"),)) for offset in offsets[:2])
    connection.open([Opening(0, 1, "s")], Start.EARLIEST)
    connection.set_aside([SetAside(0, 1, "s", letters)])
    assert administration.infos([0])[0].dead == 2

    assert administration.dead_letters(0, 100) == list(letters)
    assert administration.send_back(0, letters[1:]) == 0  # not the oldest
    assert administration.send_back(0, [letters[0]._replace(headers=())]) == 1
    assert administration.dead_letters(0, 100) == [letters[1]]
    [fetched] = connection.read([Fetch(0, offsets[2], 10)], 0)
    assert fetched.entries.entry(fetched.entries.first)[1:] == (b"bad", b"k", ())
    info = administration.infos([0])[0]
    assert (info.added, info.dead) == (4, 1)


def test_deleted_group_leaves_nothing(administration, connection, writer, session, client):
    offsets = writer.add([NewRecord(0, b"x")], None)
    connection.open([Opening(0, 1, "s")], Start.EARLIEST)
    connection.set_aside([SetAside(0, 1, "s", (Entry(offsets[0], b"x"),))])

    administration.delete()
    assert sorted(client.keys("bq:*")) == [b"bq:{orders/0}:s", b"bq:{orders}:meta"]


def test_counts_without_entries_added(administration, connection, writer, monkeypatch):
    """Before Redis 7.0 the server does not say how many entries were added."""
    calls = connection._calls
    library = calls._library
    offsets = writer.add([NewRecord(0, b"x") for _ in range(5)], None)
    connection.open([Opening(0, 1, "s")], Start.EARLIEST)
    connection.commit([CommitRequest(0, 1, "s", offsets[1], 2)])
    administration.trim()

    class OldServer:
        def __getitem__(self, name):
            text = library[name].text.replace("info['entries-added']", "nil")
            return library[name]._replace(text=text, sha="0" * 40)

    monkeypatch.setattr(calls, "_library", OldServer())
    [opened] = connection.open([Opening(0, 2, "s")], Start.EARLIEST)
    assert (opened.added, opened.length, opened.done) == (5, 3, 2)
    assert connection.infos([0])[0].added is None
