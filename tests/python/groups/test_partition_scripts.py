"""The scripts of a partition on each backend: records, fences and commits."""

import pytest

from batchqueue.groups.messages import Commit, Entry, Fenced
from batchqueue.groups.record import Start
from groups_support.scripts import EFFECTS, PARTITIONS, Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=list(PARTITIONS))
def partition(request, clock):
    return PARTITIONS[request.param](request, clock)


class TestFence:
    def test_newer_token_fences_the_older(self, partition):
        offset = partition.add(b"x")
        partition.open("g", 1, "a")
        partition.open("g", 2, "b")

        assert partition.commit("g", 1, "a", offset, 1) == Fenced(2)
        assert partition.open("g", 1, "a") == Fenced(2)
        assert partition.commit("g", 2, "b", offset, 1) is Commit.STORED

    def test_equal_token_of_another_session_is_refused(self, partition):
        offset = partition.add(b"x")
        partition.open("g", 1, "a")

        assert partition.open("g", 1, "b") == Fenced(1)
        assert partition.commit("g", 1, "b", offset, 1) == Fenced(1)
        assert partition.open("g", 1, "a").offset == 0  # a repeated open of the same one

    def test_commit_is_stored_once(self, partition):
        first, second = partition.add(b"x"), partition.add(b"y")
        partition.open("g", 1, "a")
        commands = [("RPUSH", EFFECTS, "x")]

        for _ in range(2):
            reply = partition.commit("g", 1, "a", second, 2, commands=commands)
        assert reply is Commit.OLD
        assert partition.commit("g", 1, "a", first, 1, commands=commands) is Commit.OLD
        assert partition.state.effects == commands
        assert partition.open("g", 2, "b").offset == second

    def test_dead_letters_are_stored_once(self, partition):
        letters = [Entry(partition.add(data), data) for data in (b"x", b"y", b"z")]
        partition.open("g", 1, "a")

        assert partition.set_aside("g", 1, "a", letters[1:]) == 2
        assert partition.set_aside("g", 1, "a", letters) == 1
        assert partition.state.dead["g"] == [letters[1], letters[2], letters[0]]
        partition.open("g", 2, "b")
        assert partition.set_aside("g", 1, "a", letters) == Fenced(2)
        assert partition.set_aside("g", 2, "b", letters) == 0

    def test_dead_letters_below_the_offset_are_not_stored_again(self, partition):
        first, second = (Entry(partition.add(data), data) for data in (b"x", b"y"))
        partition.open("g", 1, "a")
        partition.set_aside("g", 1, "a", [first])
        partition.commit("g", 1, "a", first.offset, 1)

        assert partition.state.fences["g"].aside == set()
        assert partition.set_aside("g", 1, "a", [first]) == 0
        assert partition.set_aside("g", 1, "a", [second]) == 1
        assert partition.state.dead["g"] == [first, second]

    def test_commit_without_open_is_refused(self, partition):
        assert partition.commit("g", 1, "a", 5, 1) == Fenced(0)

    def test_groups_are_apart(self, partition):
        offset = partition.add(b"x")
        partition.open("g", 5, "a")
        partition.open("h", 1, "b")

        assert partition.commit("h", 1, "b", offset, 1) is Commit.STORED
        assert partition.state.fences["g"].offset == 0

    def test_first_open_pins_the_start(self, partition):
        offset = partition.add(b"x")

        assert partition.open("late", 1, "a", Start.LATEST).offset == offset
        partition.add(b"y")
        assert partition.open("late", 2, "b", Start.LATEST).offset == offset
        assert partition.open("early", 1, "a").offset == 0


class TestRecords:
    def test_read_after_an_offset(self, partition, clock):
        first = partition.add(b"x")
        clock.us += 1_000
        second = partition.add(b"y", b"key")

        assert partition.read(first, 10) == [Entry(second, b"y", b"key")]
        assert [entry.offset for entry in partition.read(0, 1)] == [first]

    def test_offsets_rise_when_the_clock_is_set_back(self, partition, clock):
        first = partition.add(b"x")
        clock.us -= 10_000

        assert partition.add(b"y") > first

    def test_trim_keeps_what_a_group_has_not_done(self, partition):
        first, second = partition.add(b"x"), partition.add(b"y")
        partition.open("g", 1, "a")
        partition.commit("g", 1, "a", second, 2)

        assert partition.trim({"g", "h"}) == 0  # h has not opened it
        partition.open("h", 1, "b")
        assert partition.trim({"g"}) == 0  # h is not known to the caller
        partition.commit("h", 1, "b", first, 1)
        assert partition.trim({"g", "h"}) == 1
        assert [entry.offset for entry in partition.read(0, 10)] == [second]

    def test_start_counts_what_was_trimmed(self, partition):
        offset = partition.add(b"x")
        partition.open("g", 1, "a")
        partition.commit("g", 1, "a", offset, 1)
        partition.trim({"g"})
        partition.add(b"y")

        opened = partition.open("new", 1, "b")
        assert (opened.done, opened.added, opened.length) == (1, 2, 1)

    def test_producers_are_bounded_by_what_is_not_done(self, partition):
        partition.open("g", 1, "a")
        first = partition.add(b"x", max_len=2)
        assert partition.add(b"y", max_len=2) is not None
        assert partition.add(b"z", max_len=2) is None
        partition.commit("g", 1, "a", first, 1)
        assert partition.add(b"z", max_len=2) is not None
