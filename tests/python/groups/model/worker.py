"""A simulated worker: the product's `Control` and `PartitionTracker`, and a handler that takes
random time.
"""

from batchqueue.groups.control import Control, OrderKind, Phase, Seat, perform
from batchqueue.groups.messages import Commit, Entry, Fenced, Opened
from batchqueue.groups.worker.tracker import PartitionTracker

POLL_US = 20_000
LOST_CONNECTION = object()


class Held:
    """A partition that a worker has under one token."""

    def __init__(self, partition, token, session):
        self.partition, self.token, self.session = partition, token, session
        self.tracker = None
        self.base = 0  # records that were done before this token
        self.queue = []
        self.commands = []  # of handled chunks whose commit was not sent
        self.committing = None
        self.dead = False


class Worker:
    """Drives a `Control` through the simulated network."""

    control_class = Control

    def __init__(self, world, group, name, nonce):
        self.world, self.group, self.name = world, group, name
        self.born = world.scheduler.now
        self.control = self.control_class(
            name, nonce=nonce, lease_ms=world.lease_ms, partitions=world.start_partitions
        )
        self.alive, self.stalled, self.deferred = True, False, []
        self.held, self.inside = {}, {}
        self.connections = {}  # the life of the server that a connection was made to
        self.pumped_for = None

    @property
    def now_ms(self):
        return self.world.scheduler.now / 1_000

    @property
    def timeout_us(self):
        return self.control.timeout_ms * 1_000

    def locally(self, function, *arguments):
        """Run something inside the process: after it wakes up, and never after a crash."""
        if self.stalled:
            self.deferred.append((function, arguments))
        elif self.alive:
            function(*arguments)
            self.pump()

    def later(self, delay_us, function, *arguments):
        self.world.scheduler.after(delay_us, self.locally, function, *arguments)

    def crash(self):
        self.alive = False
        for held in self.held.values():
            if held.tracker is not None:
                held.tracker.end()

    def stall(self):
        self.stalled = True

    def wake(self):
        self.stalled = False
        deferred, self.deferred = self.deferred, []
        for function, arguments in deferred:
            self.locally(function, *arguments)

    def pump(self):
        control = self.control
        call = control.next_call(self.now_ms)
        self.obey()
        if call is not None:
            scripts = self.world.groups[self.group]
            self.world.network.call(
                self,
                lambda: self.world.run_script(
                    self.group, perform, scripts, control, control.planned(call)
                ),
                lambda reply: control.reply(call, reply, self.now_ms),
                lambda: control.failed(call, self.now_ms),
                self.timeout_us,
                may_be_late=call.kind.name not in ("TIME", "JOIN", "BEAT"),
            )
        due = control.due_ms(self.now_ms)
        if due != self.pumped_for and due != float("inf"):
            self.pumped_for = due
            self.later(max(1, (due - self.now_ms) * 1_000 + 1), self.timer)

    def timer(self):
        self.pumped_for = None

    def obey(self):
        for order in self.control.orders():
            held = self.held.get(order.partition)
            if order.kind is OrderKind.OPEN:
                held = self.held[order.partition] = Held(
                    order.partition, order.token, order.session
                )
                self.open(held)
            elif held is None or held.token != order.token:
                continue
            elif order.kind is OrderKind.DRAIN:
                if held.tracker is None:
                    held.dead = True
                    del self.held[order.partition]
                    self.control.drained(held.partition, held.token)
                else:
                    held.tracker.revoke()
                    self.check_drained(held)
            else:
                self.drop(held, order.loss)

    def drop(self, held, loss):
        self.world.checks.dropped(self, held, loss)
        held.dead = True
        self.held.pop(held.partition)
        if held.tracker is not None:
            held.tracker.end()

    def open(self, held):
        if held.dead:
            return
        scripts = self.world.partitions[held.partition]
        self.data_call(
            held.partition,
            lambda: self.world.open(scripts, self.group, held),
            lambda reply: self.opened(held, reply),
            lambda: self.open(held),
        )

    def data_call(self, partition, script, answered, failed):
        """Call a script of a partition. A connection ends when its server fails over (R14)."""
        lives = self.world.lives
        life = self.connections.setdefault(partition, lives[partition])

        def run():
            return script() if lives[partition] == life else LOST_CONNECTION

        def take(reply):
            if reply is LOST_CONNECTION:
                self.connection_lost(partition, life, failed)
            else:
                answered(reply)

        self.world.network.call(self, run, take, failed, self.timeout_us)

    def connection_lost(self, partition, life, failed):
        if self.connections.get(partition) == life:
            self.connections[partition] = self.world.lives[partition]
            self.forget(partition)
        failed()

    def forget(self, partition):
        held = self.held.get(partition)
        if held is not None:
            self.control.fenced(partition, held.token, 0)
            self.obey()

    def opened(self, held, reply):
        if isinstance(reply, Fenced):
            self.control.fenced(held.partition, held.token, reply.token)
        elif not held.dead and self.control.opened(held.partition, held.token):
            assert isinstance(reply, Opened)
            held.base = reply.done
            held.tracker = PartitionTracker(reply.offset, prefetch=8)
            self.world.trackers.append(held.tracker)
            self.fetch(held)

    def may_work(self, held):
        return not held.dead and self.control.may_work(held.partition, held.token, self.now_ms)

    def fetch(self, held):
        if not self.may_work(held):
            return
        room = held.tracker.room.records
        if not room:
            self.later(POLL_US, self.fetch, held)
            return
        position = held.tracker.position
        scripts = self.world.partitions[held.partition]
        self.data_call(
            held.partition,
            lambda: scripts.read(position, min(room, 4)),
            lambda entries: self.fetched(held, entries),
            lambda: self.fetch(held),
        )

    def fetched(self, held, entries):
        if held.dead:
            return
        if entries:
            offsets = [entry.offset for entry in entries]
            chunk = held.tracker.add(len(offsets), offsets[0], offsets[-1], len(offsets))
            if chunk is not None:
                held.queue.append((chunk, offsets))
                self.work(held)
                self.later(0, self.fetch, held)
        else:
            self.later(POLL_US, self.fetch, held)

    def work(self, held):
        """Start the handler, unless it is inside this partition: one call at a time."""
        while held.queue and not self.inside.get(held.partition) and self.may_work(held):
            chunk, offsets = held.queue.pop(0)
            if held.tracker.start(chunk):
                self.inside[held.partition] = True
                self.world.checks.handler_starts(self, held, offsets)
                random = self.world.random
                slow = random.random() < 0.03
                time_us = random.randint(10_000, 80_000) if slow else random.randint(100, 3_000)
                self.later(time_us, self.handled, held, chunk, offsets)

    def handled(self, held, chunk, offsets):
        """The last thing that a handler does is to write to its sink.

        It raises for a batch with a bad record, which is halved until that stands alone. Here the
        records before it are written immediately.
        """
        self.world.checks.handler_left(self, held)
        bad = self.first_bad(held, offsets)
        good, rest = offsets[:bad], offsets[bad:]
        refused_by = self.world.checks.handler_ends(self, held, good) if good else None
        if refused_by is not None:
            self.refused(held, chunk, offsets, refused_by)
        else:
            self.settle(held, chunk, good)
            if rest and not held.dead:
                self.isolate(held, chunk, rest)
                return
        self.leave_handler(held)

    def first_bad(self, held, offsets):
        """The place of the first record that the handler raises for; a sink skips what it has."""
        world = self.world
        sink = world.checks.sink(self.group, held.partition)
        last = sink.last if world.sink_is_fenced else 0
        bad = (n for n, offset in enumerate(offsets) if offset > last and world.is_bad(offset))
        return next(bad, len(offsets))

    def isolate(self, held, chunk, offsets):
        """Set the first of the records aside, and continue with the others (R18)."""
        self.set_aside(held, chunk, offsets[0], lambda: self.proceed(held, chunk, offsets[1:]))

    def set_aside(self, held, chunk, bad, then):
        scripts = self.world.partitions[held.partition]

        def answered(reply):
            if not held.dead and isinstance(reply, Fenced):
                self.control.fenced(held.partition, held.token, reply.token)
                self.obey()
            elif not held.dead:
                held.tracker.settle(chunk, dead=1)
                self.world.checks.set_aside(self, held, bad)
                self.commit(held)
            then()

        def repeat():
            if self.may_work(held):
                self.set_aside(held, chunk, bad, then)
            else:
                then()

        self.data_call(
            held.partition,
            lambda: scripts.set_aside(self.group, held.token, held.session, [Entry(bad, b"")]),
            answered,
            repeat,
        )

    def proceed(self, held, chunk, offsets):
        if offsets and self.may_work(held):
            self.later(self.world.random.randint(100, 3_000), self.handled, held, chunk, offsets)
        else:
            self.leave_handler(held)

    def leave_handler(self, held):
        self.inside[held.partition] = False
        current = self.held.get(held.partition)
        if current is not None and current.tracker is not None:
            self.work(current)

    def refused(self, held, chunk, offsets, seen):
        self.control.fenced(held.partition, held.token, seen)

    def settle(self, held, chunk, offsets):
        if held.dead or not offsets:
            return
        held.commands += [("EFFECT", self.group, offset) for offset in offsets]
        held.tracker.settle(chunk, handled=len(offsets))
        self.commit(held)

    def mark(self, held):
        return held.tracker.to_commit()

    def commit(self, held):
        if held.committing is None and self.may_work(held):
            mark = self.mark(held)
            if mark is not None:
                # Repeated unchanged until there is a reply: else effects would run twice.
                commands = held.commands if self.world.commits_effects else []
                held.committing = (mark, commands)
                held.commands = []
                self.send_commit(held)
        self.check_drained(held)

    def send_commit(self, held):
        if not self.may_work(held):
            return
        mark, commands = held.committing
        scripts = self.world.partitions[held.partition]
        done = held.base + mark.records
        self.data_call(
            held.partition,
            lambda: self.world.commit(scripts, self.group, held, mark.offset, done, commands),
            lambda reply: self.committed(held, mark, reply),
            lambda: self.repeat_commit(held),
        )

    def repeat_commit(self, held):
        self.send_commit(held)

    def committed(self, held, mark, reply):
        if held.dead:
            return
        held.committing = None
        if isinstance(reply, Fenced):
            self.control.fenced(held.partition, held.token, reply.token)
            return
        assert reply in (Commit.STORED, Commit.OLD)
        held.tracker.acknowledge(mark.offset)
        self.commit(held)

    def is_drained(self, held):
        return held.tracker.drained

    def check_drained(self, held):
        if not held.dead and self.is_drained(held):
            self.control.drained(held.partition, held.token)
            held.dead = True
            held.tracker.end()
            self.held.pop(held.partition, None)

    def serves(self, partition):
        held = self.control.holdings.get(partition)
        running = held is not None and held.phase in (Phase.RUNNING, Phase.DRAINING)
        return running and self.alive and not self.stalled

    @property
    def ended(self):
        return not self.alive or self.control.seat in (Seat.LEFT, Seat.REPLACED)
