"""The control side of workers against the scripts in memory, step by step."""

from dataclasses import replace

import pytest

from batchqueue.groups.control import Control, Loss, OrderKind, Phase, Seat, perform
from batchqueue.groups.memory import GroupScripts
from batchqueue.groups.messages import CallKind, EventKind
from batchqueue.groups.plan import GroupBalancer

LEASE_MS = 1_000


class Bench:
    """Workers whose calls are answered immediately, and which open what they are granted."""

    def __init__(self, partitions=8):
        self.now_ms = 0
        self.partitions = partitions
        self.scripts = GroupScripts(lambda: 1_700_000_000_000_000 + int(self.now_ms * 1_000))
        self.workers = {}
        self.orders = {}
        self.silent = set()  # crashed or stalled
        self.slow = set()  # these drain when the test says so

    def start(self, name, nonce=None, balancer=None):
        nonce = nonce or name
        worker = Control(
            name, nonce=nonce, lease_ms=LEASE_MS, partitions=self.partitions, balancer=balancer
        )
        self.workers[nonce] = worker
        self.orders[nonce] = []
        return worker

    def round(self):
        """Answer every call that is due; return whether there was any."""
        called = False
        for nonce, worker in self.workers.items():
            if nonce in self.silent:
                continue
            while call := worker.next_call(self.now_ms):
                called = True
                worker.reply(call, perform(self.scripts, worker, worker.planned(call)), self.now_ms)
                self.obey(nonce, worker)
            self.obey(nonce, worker)
            worker.notice(self.scripts.state.version)
        return called

    def obey(self, nonce, worker):
        for order in worker.orders():
            self.orders[nonce].append(order)
            if order.kind is OrderKind.OPEN:
                worker.opened(order.partition, order.token)
            elif order.kind is OrderKind.DRAIN and nonce not in self.slow:
                worker.drained(order.partition, order.token)

    def run(self, ms):
        end = self.now_ms + ms
        while self.now_ms < end:
            while self.round():
                pass
            self.now_ms += 5
        while self.round():
            pass

    def owned(self, nonce):
        holdings = self.workers[nonce].holdings.values()
        return sorted(held.partition for held in holdings if held.phase is Phase.RUNNING)

    def drops(self, nonce):
        return [order for order in self.orders[nonce] if order.kind is OrderKind.DROP]


@pytest.fixture
def bench():
    return Bench()


@pytest.fixture
def pair(bench):
    """Two members that share eight partitions."""
    bench.start("a")
    bench.run(100)
    bench.start("b")
    bench.run(100)
    return bench


class TestJoinAndLeave:
    def test_first_member_takes_all(self, bench):
        bench.start("a")
        bench.run(60)

        assert bench.owned("a") == list(range(8))

    def test_second_member_takes_half_and_the_rest_never_pauses(self, bench):
        first = bench.start("a")
        bench.run(100)
        tokens = {p: held.token for p, held in first.holdings.items()}
        bench.start("b")
        bench.run(100)

        kept = bench.owned("a")
        assert len(kept) == 4
        assert sorted(kept + bench.owned("b")) == list(range(8))
        assert {p: first.holdings[p].token for p in kept} == {p: tokens[p] for p in kept}
        touched = {order.partition for order in bench.orders["a"] if order.kind is OrderKind.DRAIN}
        assert touched.isdisjoint(kept)

    def test_acquire_before_release_grants_nothing_and_the_release_wakes(self, bench):
        first = bench.start("a")
        bench.run(100)
        bench.slow.add("a")
        bench.start("b")
        bench.run(200)
        assert bench.owned("b") == []
        draining = [h for h in first.holdings.values() if h.phase is Phase.DRAINING]
        assert len(draining) == 4

        first.drained(draining[0].partition, draining[0].token)
        bench.run(10)  # a beat would take 250 ms
        assert bench.owned("b") == [draining[0].partition]

    def test_leave_moves_each_partition_as_soon_as_it_is_drained(self, pair):
        leaver = pair.workers["a"]
        pair.slow.add("a")
        mine = pair.owned("a")
        leaver.leave()
        pair.run(100)
        leaver.drained(mine[0], leaver.holdings[mine[0]].token)
        pair.run(100)

        assert leaver.seat is Seat.MEMBER
        assert mine[0] in pair.owned("b")
        for partition in mine[1:]:
            leaver.drained(partition, leaver.holdings[partition].token)
        pair.run(100)
        assert leaver.seat is Seat.LEFT
        assert pair.owned("b") == list(range(8))

    def test_leave_gives_up_what_is_not_drained_in_time(self, pair):
        leaver = pair.workers["a"]
        pair.slow.add("a")
        leaver.leave()
        pair.run(100)
        leaver.give_up()
        pair.run(100)

        assert leaver.seat is Seat.LEFT
        assert {order.loss for order in pair.drops("a")} == {Loss.GIVEN_UP}
        assert pair.owned("b") == list(range(8))

    def test_all_leave_at_the_same_time(self, pair):
        for worker in pair.workers.values():
            worker.leave()
        pair.run(200)

        assert {worker.seat for worker in pair.workers.values()} == {Seat.LEFT}
        assert pair.scripts.state.owners == {}

    def test_more_members_than_partitions(self):
        bench = Bench(partitions=2)
        for name in "abc":
            bench.start(name)
        bench.run(200)
        assert sorted(len(bench.owned(name)) for name in "abc") == [0, 1, 1]

        (standby,) = (name for name in "abc" if not bench.owned(name))
        other = "a" if standby != "a" else "b"
        bench.workers[other].leave()
        bench.run(200)
        assert len(bench.owned(standby)) == 1

    def test_leaving_is_repeated_to_a_server_that_has_forgotten_it(self, pair):
        pair.slow.add("a")
        pair.workers["a"].leave()
        pair.run(50)
        members = pair.scripts.state.members
        (session,) = (s for s, member in members.items() if member.leaving)
        members[session] = replace(members[session], leaving=False)
        pair.run(600)

        assert pair.scripts.state.members[session].leaving

    def test_worker_is_asked_to_leave(self, pair):
        pair.scripts.leaving(pair.workers["a"].session)
        pair.run(200)

        assert pair.workers["a"].seat is Seat.LEFT


def test_what_is_granted_after_it_has_given_up_is_not_opened(bench):
    worker = bench.start("a")
    while True:
        call = worker.next_call(bench.now_ms)
        if call is None:
            bench.now_ms += 5
            continue
        reply = perform(bench.scripts, worker, worker.planned(call))
        if call.kind is CallKind.SYNC and reply.grants:
            break
        worker.reply(call, reply, bench.now_ms)
    worker.give_up()
    worker.reply(call, reply, bench.now_ms)
    assert worker.orders() == []
    assert worker.holdings == {}


class TestCrashAndStall:
    def test_others_take_over_when_the_lease_ends(self, pair):
        pair.run(300)
        pair.silent.add("a")
        pair.run(LEASE_MS - 260)
        assert len(pair.owned("b")) == 4
        pair.run(300)

        assert pair.owned("b") == list(range(8))
        kinds = [event.kind for event in pair.scripts.history()]
        assert kinds.count(EventKind.DEAD) == 1

    def test_stalled_worker_drops_everything_and_comes_back_under_its_name(self, pair):
        stalled = pair.workers["a"]
        old = stalled.session
        pair.silent.add("a")
        pair.run(2 * LEASE_MS)
        for partition, held in stalled.holdings.items():
            assert not stalled.may_work(partition, held.token, pair.now_ms)
        pair.silent.discard("a")
        pair.run(200)

        assert {order.loss for order in pair.drops("a")} == {Loss.LEASE_OVER}
        assert len(pair.drops("a")) == 4
        assert stalled.session != old
        assert len(pair.owned("a")) == len(pair.owned("b")) == 4

    def test_own_deadline_is_before_the_end_of_the_lease(self, pair):
        worker = pair.workers["a"]
        (partition, *_) = pair.owned("a")
        token = worker.holdings[partition].token
        end = pair.scripts.state.leases[worker.session] - 1_700_000_000_000

        assert worker.may_work(partition, token, worker.deadline_ms - 1)
        assert not worker.may_work(partition, token, worker.deadline_ms)
        assert end - 0.05 * LEASE_MS - 5 <= worker.deadline_ms < end

    def test_lease_is_reckoned_from_the_time_of_sending(self, bench):
        worker = bench.start("a")
        bench.run(60)
        bench.now_ms = worker.due_ms(bench.now_ms)
        call = worker.next_call(bench.now_ms)
        reply = perform(bench.scripts, worker, worker.planned(call))
        worker.reply(call, reply, bench.now_ms + 200)

        assert call.kind is CallKind.BEAT
        assert worker.deadline_ms == call.sent_ms + 0.95 * LEASE_MS

    def test_newer_process_of_the_same_name_replaces_the_older(self, pair):
        pair.start("a", nonce="a2")
        pair.run(400)

        assert pair.workers["a"].seat is Seat.REPLACED
        assert {order.loss for order in pair.drops("a")} == {Loss.UNKNOWN}
        assert len(pair.owned("a2")) == 4

    def test_worker_survives_the_loss_of_all_that_the_server_knew(self, pair):
        pair.scripts.state = type(pair.scripts.state)()
        pair.run(600)

        assert len(pair.owned("a")) == len(pair.owned("b")) == 4


class TestFencing:
    def test_fenced_partition_gets_a_fresh_token_above_what_was_seen(self, pair):
        worker = pair.workers["a"]
        (partition, *_) = pair.owned("a")
        token = worker.holdings[partition].token
        seen = token + 10**12
        worker.fenced(partition, token, seen)
        assert not worker.may_work(partition, token, pair.now_ms)
        pair.run(10)

        assert worker.holdings[partition].token > seen
        assert [order.loss for order in pair.drops("a")] == [Loss.FENCED]

    def test_report_about_an_older_token_drops_nothing(self, pair):
        worker = pair.workers["a"]
        (partition, *_) = pair.owned("a")
        token = worker.holdings[partition].token
        worker.fenced(partition, token - 1, 0)
        worker.drained(partition, token)

        assert worker.holdings[partition].phase is Phase.RUNNING

    def test_opened_after_the_revoke_does_not_run(self, bench):
        worker = bench.start("a")
        bench.obey = lambda nonce, worker: None
        bench.run(60)
        (order, *_) = worker.orders()
        worker.leave()
        bench.run(60)

        assert not worker.opened(order.partition, order.token)
        assert worker.holdings[order.partition].phase is Phase.DRAINING


class TestCalls:
    def test_one_call_at_a_time(self, bench):
        worker = bench.start("a")
        call = worker.next_call(0)

        assert call.kind is CallKind.TIME
        assert worker.next_call(0) is None
        worker.failed(call, 10)
        assert worker.next_call(10) is None
        assert worker.due_ms(10) == 60
        assert worker.next_call(60).kind is CallKind.TIME

    def test_reply_of_a_failed_call_is_ignored(self, pair):
        worker = pair.workers["a"]
        pair.now_ms = worker.due_ms(pair.now_ms)
        call = worker.next_call(pair.now_ms)
        deadline = worker.deadline_ms
        worker.failed(call, pair.now_ms)
        worker.reply(call, perform(pair.scripts, worker, worker.planned(call)), pair.now_ms)

        assert worker.deadline_ms == deadline

    def test_failed_release_is_made_good_by_the_next_sync(self, bench):
        first = bench.start("a")
        bench.run(100)
        bench.slow.add("a")
        bench.start("b")
        bench.run(100)
        (held, *_) = (h for h in first.holdings.values() if h.phase is Phase.DRAINING)
        first.drained(held.partition, held.token)
        call = first.next_call(bench.now_ms)
        assert call.kind is CallKind.RELEASE
        first.failed(call, bench.now_ms)
        bench.run(100)

        assert held.partition in bench.owned("b")
        assert bench.scripts.release(call.session, call.released) == 0

    def test_wake_up_during_a_beat_is_not_forgotten(self, pair):
        worker = pair.workers["a"]
        pair.now_ms = worker.due_ms(pair.now_ms)
        call = worker.next_call(pair.now_ms)
        reply = perform(pair.scripts, worker, worker.planned(call))
        worker.notice(reply.version + 1)
        worker.reply(call, reply, pair.now_ms)

        assert call.kind is CallKind.BEAT
        assert worker.next_call(pair.now_ms).kind is CallKind.SYNC

    def test_sync_is_due_every_ten_beats(self, bench):
        worker = bench.start("a")
        bench.run(100)
        kinds = []
        while kinds.count(CallKind.BEAT) < 20:
            bench.now_ms = max(bench.now_ms, worker.due_ms(bench.now_ms))
            call = worker.next_call(bench.now_ms)
            kinds.append(call.kind)
            worker.reply(call, perform(bench.scripts, worker, worker.planned(call)), bench.now_ms)

        assert kinds.count(CallKind.SYNC) == 2
        assert set(kinds) == {CallKind.BEAT, CallKind.SYNC}


def test_partitions_get_owners_although_the_custom_balancer_raises():
    def broken(weights, last_owner, capacity, *, force):
        raise ZeroDivisionError("no load")

    bench = Bench()
    for name in "ab":
        bench.start(name, balancer=GroupBalancer.custom(broken))
    bench.run(1_000)

    assert [len(bench.owned(name)) for name in "ab"] == [4, 4]
    errors = [str(worker.plan_error) for worker in bench.workers.values() if worker.plan_error]
    assert errors
    assert all("no load" in error for error in errors)
