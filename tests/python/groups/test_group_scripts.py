"""The scripts of a group on each backend: members, plans and grants, with a clock by hand."""

import threading
from types import SimpleNamespace

import pytest

from batchqueue.groups.memory import GroupScripts
from batchqueue.groups.messages import (
    Beaten,
    EventKind,
    Incarnation,
    Joined,
    Member,
    Refusal,
    Replaced,
)
from groups_support.scripts import GROUPS, Clock

LEASE_MS = 1_000


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=list(GROUPS))
def group(request, clock):
    return GROUPS[request.param](request, clock)


def member(name, process=1, session=1, **fields):
    return Member(name, Incarnation(process, session), **fields)


def join(group, session, who=None, partitions=8, asked_us=None):
    asked_us = group.time() if asked_us is None else asked_us
    return group.join(session, LEASE_MS, who or member(session), partitions, asked_us=asked_us)


def settle(group, clock, session="a", number=1):
    """Beat when members have settled, and return the ticket."""
    clock.pass_ms(50)
    return group.beat(session, number, LEASE_MS).ticket


def plan(group, clock, targets, session="a", number=1):
    ticket = settle(group, clock, session, number)
    return group.plan(session, ticket.member_version, targets)


class TestJoin:
    def test_first_join_fixes_the_partitions(self, group):
        assert join(group, "a", partitions=8).partitions == 8
        assert join(group, "b", partitions=3).partitions == 8

    def test_repeated_join_changes_nothing(self, group):
        first = join(group, "a")

        assert join(group, "a") == first
        assert [event.kind for event in group.history()] == [EventKind.JOIN]

    def test_newer_process_replaces_the_older_one(self, group):
        join(group, "old", member("etl", process=1))

        assert isinstance(join(group, "new", member("etl", process=2)), Joined)
        assert group.beat("old", 1, LEASE_MS) is Refusal.UNKNOWN

    def test_replaced_process_cannot_come_back(self, group):
        join(group, "old", member("etl", process=1))
        join(group, "new", member("etl", process=2, host="h", pid=7))

        assert join(group, "old:2", member("etl", process=1, session=2)) == Replaced("h", 7)
        assert isinstance(group.beat("new", 1, LEASE_MS), Beaten)

    def test_late_join_of_an_old_session_is_refused(self, group):
        join(group, "a:1", member("a", session=1))
        join(group, "a:2", member("a", session=2))

        assert isinstance(join(group, "a:1", member("a", session=1)), Replaced)
        assert isinstance(group.beat("a:2", 1, LEASE_MS), Beaten)

    def test_join_that_was_under_way_for_too_long_is_refused(self, group, clock):
        asked_us = group.time()
        clock.pass_ms(LEASE_MS // 4 + 1)

        assert join(group, "a", asked_us=asked_us) is Refusal.LATE
        assert group.history() == []


class TestLease:
    def test_any_member_expires_the_dead(self, group, clock):
        join(group, "a")
        clock.pass_ms(600)
        join(group, "b")
        clock.pass_ms(400)

        reply = group.beat("b", 1, LEASE_MS)

        assert reply.ticket is not None  # a death does not wait to settle
        assert group.history()[-1].kind is EventKind.DEAD
        assert group.beat("a", 1, LEASE_MS) is Refusal.UNKNOWN

    def test_beat_does_not_revive(self, group, clock):
        join(group, "a")
        clock.pass_ms(LEASE_MS)

        assert group.beat("a", 1, LEASE_MS) is Refusal.UNKNOWN
        assert group.beat("a", 2, LEASE_MS) is Refusal.UNKNOWN

    def test_beat_names_the_end_of_the_next_lease(self, group, clock):
        join(group, "a")
        join(group, "b")
        plan(group, clock, {})
        clock.pass_ms(100)

        # b joined 150 ms ago and has not beaten since.
        assert group.beat("a", 2, LEASE_MS).next_ms == LEASE_MS - 150

    def test_lease_ends_in_time_after_the_clock_was_set_back(self, group, clock):
        join(group, "dead")
        clock.pass_ms(-60_000)
        join(group, "b")
        clock.pass_ms(LEASE_MS - 1)
        group.beat("b", 1, LEASE_MS)
        clock.pass_ms(1)
        group.beat("b", 2, LEASE_MS)

        assert [event.session for event in group.history() if event.kind is EventKind.DEAD] == [
            "dead"
        ]

    def test_repeated_beat_takes_no_ticket(self, group, clock):
        join(group, "a")
        group.beat("a", 1, LEASE_MS)
        clock.pass_ms(50)

        assert group.beat("a", 1, LEASE_MS) is Refusal.LATE
        assert group.beat("a", 2, LEASE_MS).ticket is not None


class TestPlan:
    def test_joins_are_awaited_but_not_for_ever(self, group, clock):
        for number in range(20):
            join(group, f"m{number}")
            clock.pass_ms(40)
            reply = group.beat("m0", number + 1, LEASE_MS)
            if reply.ticket is not None:
                break

        assert clock() - 1_700_000_000_000_000 == 520_000

    def test_one_ticket_at_a_time(self, group, clock):
        join(group, "a")
        join(group, "b")

        assert settle(group, clock, "a") is not None
        reply = group.beat("b", 1, LEASE_MS)
        assert (reply.ticket, reply.next_ms) == (None, 500)
        clock.pass_ms(500)
        assert group.beat("b", 2, LEASE_MS).ticket is not None

    def test_plan_for_other_members_is_refused(self, group, clock):
        join(group, "a")
        ticket = settle(group, clock)
        join(group, "b")

        assert group.plan("a", ticket.member_version, {0: "a"}) is Refusal.STALE

    def test_plan_for_a_session_that_is_unknown_is_refused(self, group, clock):
        join(group, "a")

        assert plan(group, clock, {0: "ghost"}) is Refusal.STALE

    def test_periodic_plan(self, group, clock):
        join(group, "a")
        plan(group, clock, {0: "a"})
        for number in range(2, 60):
            clock.pass_ms(600)
            if (reply := group.beat("a", number, LEASE_MS)).ticket:
                break

        assert reply.ticket.force is False
        assert number == 51  # 30 s

    def test_same_plan_wakes_no_member(self, group, clock):
        join(group, "a")
        plan(group, clock, {0: "a"})
        version = group.state.version
        group.resize(9)
        before = group.state.version
        plan(group, clock, {0: "a"}, number=2)

        assert version < before == group.state.version

    def test_membership_change_withdraws_the_ticket(self, group, clock):
        join(group, "a")
        settle(group, clock)
        join(group, "b")

        assert settle(group, clock, "b") is not None


class TestSync:
    @pytest.fixture
    def owners(self, group, clock):
        """Two members; a owns partition 0 of 2, and b partition 1."""
        join(group, "a", partitions=2)
        join(group, "b")
        plan(group, clock, {0: "a", 1: "b"})
        return SimpleNamespace(
            a=group.sync("a", 2, 0, {}).grants[0], b=group.sync("b", 1, 0, {}).grants[1]
        )

    def test_nothing_changes_for_what_is_held(self, group, owners):
        reply = group.sync("a", 3, 0, {0: owners.a})

        assert (reply.grants, reply.revoked, reply.lost) == ({}, (), ())

    def test_late_sync_does_nothing(self, group, owners):
        group.sync("a", 3, 0, {0: owners.a})

        assert group.sync("a", 2, 0, {}) is Refusal.LATE
        assert group.state.owners[0] == ("a", owners.a)

    def test_repeated_grant_has_a_fresh_token(self, group, owners):
        assert group.sync("a", 3, 0, {}).grants[0] > owners.a

    def test_token_is_above_what_was_seen(self, group, owners):
        seen = owners.b + 10**9

        assert group.sync("a", 3, seen, {}).grants[0] > seen

    def test_other_token_is_lost(self, group, owners):
        reply = group.sync("a", 3, 0, {0: owners.a - 1, 1: 5})

        assert reply.lost == (0, 1)

    def test_target_gets_a_partition_after_its_release(self, group, clock, owners):
        clock.pass_ms(1)
        group.retarget(0, "b")

        assert group.sync("a", 3, 0, {0: owners.a}).revoked == (0,)
        assert group.sync("b", 2, 0, {1: owners.b}).grants == {}
        version = group.state.version
        assert group.release("a", [(0, owners.a)]) == 1
        assert group.state.version > version  # the release wakes b
        assert set(group.sync("b", 3, 0, {1: owners.b}).grants) == {0}

    def test_late_release_takes_nothing_from_the_next_owner(self, group, owners):
        group.release("a", [(0, owners.a)])
        fresh = group.sync("a", 3, 0, {}).grants[0]

        assert group.release("a", [(0, owners.a)]) == 0
        assert group.state.owners[0] == ("a", fresh)

    def test_what_is_not_held_is_freed_for_its_target(self, group, owners):
        group.retarget(0, "b")
        group.sync("a", 3, 0, {})

        assert 0 in group.sync("b", 2, 0, {1: owners.b}).grants

    def test_partition_stays_while_its_target_is_dead(self, group, owners):
        group.retarget(0, "b")
        group.leave("b")

        assert group.sync("a", 3, 0, {0: owners.a}).revoked == ()

    def test_leaving_session_is_revoked_everything_and_granted_nothing(self, group, owners):
        assert group.leaving("a") == 1
        assert group.sync("a", 3, 0, {0: owners.a}).revoked == (0,)
        group.release("a", [(0, owners.a)])

        assert group.sync("a", 4, 0, {}).grants == {}  # although 0 is still to go to a

    def test_leave_frees_what_is_left(self, group, owners):
        assert group.leave("a") == 1
        assert group.leave("a") == 0
        assert 0 not in group.state.owners

    def test_resize_only_upwards(self, group, owners):
        assert group.resize(1) == 2
        assert group.resize(3) == 3
        assert group.sync("a", 3, 0, {0: owners.a}).partitions == 3


class TestWakeUps:
    def test_history_is_bounded(self, group, clock):
        for number in range(1_100):
            group.resize(number + 1)

        assert len(group.history()) == 1_000

    def test_history_after_a_version(self, group):
        version = join(group, "a").version
        join(group, "b")

        (event,) = group.history(version)
        assert (event.kind, event.session, event.name) == (EventKind.JOIN, "b", "b")

    def test_wait_ends_with_a_change(self, clock):
        group = GroupScripts(clock)
        version = group.state.version
        thread = threading.Thread(target=group.resize, args=(3,))
        thread.start()

        assert group.wait(version, 30) != version
        thread.join()
        assert group.wait(group.state.version, 0) == group.state.version
