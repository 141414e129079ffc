"""The promises, checked after each step of a run."""

from bisect import bisect_left

from batchqueue.groups.control import Phase


class BrokenPromiseError(AssertionError):
    """A promise of `batchqueue.groups` does not hold."""

    def __init__(self, promise, message):
        super().__init__(f"{promise}: {message}")
        self.promise = promise


class Sink:
    """Where the handlers of a group write the records of a partition."""

    def __init__(self):
        self.token, self.last, self.offsets = 0, 0, []
        self.aside = set()  # what was set aside
        self.done = set()  # what an owner may count as done
        self.calls = []  # offsets in the order of the calls, with all repetitions


class Checks:
    """What an observer sees who forgets nothing, also when servers do."""

    def __init__(self, world):
        self.world = world
        self.sinks = {}
        self.committers = {}
        self.newest = {}  # the newest token that committed or opened
        self.verified = {}  # the offset up to which all records were seen done
        self.lease_end_us = {}
        self.busy = {}
        self.unserved_since = {}

    def sink(self, group, partition):
        return self.sinks.setdefault((group, partition), Sink())

    def require(self, condition, promise, message):
        if not condition:
            raise BrokenPromiseError(promise, f"{message}, at {self.world.scheduler.now} us")

    def opened(self, group, held):
        key = group, held.partition
        if not self.world.clock_was_set_back:
            self.require(
                held.token >= self.newest.get(key, 0), "G1", f"{key}: an older token opened"
            )
        self.newest[key] = held.token

    def committed(self, group, held, offset):
        key = group, held.partition
        if not (self.world.clock_was_set_back and self.world.was_rolled_back):
            committer = self.committers.setdefault((*key, held.token), held.session)
            self.require(committer == held.session, "G1", f"{key}: two committers for one token")
        self.require(
            held.token >= self.newest.get(key, 0), "G1", f"{key}: an older token committed"
        )
        begin = self.verified.get(key, 0)
        self.verified[key] = offset
        self.require(offset >= begin, "G2", f"{key}: the offset went back")
        ids, done = self.world.ids[held.partition], self.sink(*key).done
        for number in range(bisect_left(ids, begin + 1), bisect_left(ids, offset + 1)):
            self.require(ids[number] in done, "G2", f"{key}: the offset covers {ids[number]}")

    def set_aside(self, worker, held, offset):
        sink = self.sink(worker.group, held.partition)
        sink.aside.add(offset)
        sink.done.add(offset)
        if self.world.profile.calm:
            sink.calls.append(offset)

    def rolled_back(self, partition):
        """A partition lost its last writes: what comes again is not a fault."""
        fences = self.world.partitions[partition].state.fences
        for group in self.world.groups:
            fence = fences.get(group)
            self.verified[group, partition] = fence.offset if fence else 0
            if self.world.clock_was_set_back:
                self.newest[group, partition] = fence.token if fence else 0

    def renewed(self, session, end_ms):
        self.lease_end_us[session] = max(self.lease_end_us.get(session, 0), end_ms * 1_000)

    def handler_starts(self, worker, held, offsets):
        key = worker.group, held.partition
        world = self.world
        if not (world.clock_was_set_back or world.was_rolled_back):
            self.require(
                world.server_now() < self.lease_end_us[held.session],
                "G1",
                f"{key}: a handler starts after the lease was lost",
            )
        if world.profile.calm:
            inside = self.busy.get(key)
            self.require(inside is None, "G6", f"{key}: two handlers at the same time")
        self.busy[key] = worker

    def handler_left(self, worker, held):
        self.busy.pop((worker.group, held.partition), None)

    def handler_ends(self, worker, held, offsets):
        """Write to the sink; return the token that refused the write, or None."""
        world, sink = self.world, self.sink(worker.group, held.partition)
        key = worker.group, held.partition
        if world.profile.calm:
            last = sink.calls[-1] if sink.calls else 0
            self.require(offsets[0] > last, "G6", f"{key}: {offsets[0]} came twice in a calm run")
        sink.calls += offsets
        if not world.sink_is_fenced:
            sink.done.update(offsets)
            return None
        if held.token < sink.token:
            return sink.token
        sink.token = held.token
        new = [offset for offset in offsets if offset > sink.last]
        sink.done.update(offsets)
        if new:
            ids = [each for each in world.ids[held.partition] if each not in sink.aside]
            before = bisect_left(ids, new[0]) - 1
            gap = before >= 0 and ids[before] > sink.last
            self.require(not gap, "G3", f"{key}: {new[0]} was stored before what precedes it")
            sink.offsets += new
            sink.last = new[-1]
        return None

    def dropped(self, worker, held, loss):
        if self.world.profile.calm:
            key = worker.group, held.partition
            self.require(False, "G5", f"{key}: {worker.name} lost it in a calm run, {loss}")

    def owners_changed(self, group, before, after):
        for partition, owner in before.items():
            if owner == after.get(partition) or not self.world.profile.calm:
                continue
            for worker in self.world.workers:
                held = worker.control.holdings.get(partition)
                running = held is not None and held.phase is Phase.RUNNING
                if worker.control.session == owner.session and running and worker.group == group:
                    self.require(
                        held.token != owner.token,
                        "G5",
                        f"{group}, {partition}: {worker.name} was interrupted",
                    )

    def serving(self, bound_us, quiet_since_us):
        """Each partition has an owner again within the bound, while one member lives."""
        world, now = self.world, self.world.scheduler.now
        for group in world.groups:
            if not world.members(group):
                world.disturb(group)
            for partition in range(world.groups[group].state.partitions or world.start_partitions):
                key = group, partition
                if any(w.serves(partition) for w in world.workers if w.group == group):
                    self.unserved_since[key] = now
                    continue
                since = max(self.unserved_since.setdefault(key, now), quiet_since_us[group])
                self.require(
                    now - since <= bound_us, "G4", f"{key}: no owner since {since} us, now {now} us"
                )

    def at_rest(self):
        world = self.world
        for partition, scripts in world.partitions.items():
            ids = world.ids[partition]
            for group in world.groups:
                key = group, partition
                fence, sink = scripts.state.fences.get(group), self.sink(group, partition)
                if fence is None and not ids:
                    continue  # a rollback took it away, and nothing was to commit since
                self.require(fence, "G4", f"{key}: not opened")
                self.require(
                    fence.offset >= scripts.state.end,
                    "G4",
                    f"{key}: {fence.offset} is done of {scripts.state.end}",
                )
                self.require(
                    fence.offset == scripts.state.end and fence.done == scripts.state.added,
                    "G2",
                    f"{key}: {fence.done} of {scripts.state.added} records are done",
                )
                letters = [entry.offset for entry in scripts.state.dead.get(group, [])]
                if not world.was_rolled_back:  # which takes dead letters with it
                    bad = sorted(filter(world.is_bad, ids))
                    self.require(sorted(letters) == bad, "G6", f"{key}: other dead letters")
                good = [offset for offset in ids if offset not in sink.aside]
                if world.sink_is_fenced:
                    kept = set(good)
                    stored = [offset for offset in sink.offsets if offset in kept]
                    self.require(stored == good, "G6", f"{key}: the sink has other records")
                # A sink that skips a bad record which was set aside lets its effect run.
                skips = world.has_bad and (world.was_rolled_back or world.sink_is_fenced)
                if world.commits_effects and not skips:
                    effects = [o for _, name, o in scripts.state.effects if name == group]
                    self.require(effects == good, "G6", f"{key}: the effects are not the records")
                self.require(set(ids) <= sink.done, "G2", f"{key}: a record is missing")
                if world.profile.calm:
                    self.require(sink.calls == ids, "G6", f"{key}: a duplicate in a calm run")

    def counted(self):
        for tracker in self.world.trackers:
            counts = tracker.counts
            total = counts.handled + counts.dead + counts.skipped + counts.dropped
            self.require(counts.fetched == total, "G7", f"{counts} does not add up")
