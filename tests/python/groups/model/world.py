"""A run: servers, workers, producers, and what happens to them, all from one seed."""

import copy
import random as random_module
from dataclasses import replace

from batchqueue.groups.control import Seat
from batchqueue.groups.memory import GroupScripts, PartitionScripts
from batchqueue.groups.messages import Commit, Opened

from .checks import Checks
from .network import EPOCH_US, Network, Profile, Scheduler
from .worker import Worker

MS = 1_000

JOINS = (("join", 4), ("leave", 3), ("add", 8), ("trim", 1), ("resize", 1))
QUIET = Profile("quiet", actions=JOINS, lease_ms=5_000)
CALM = Profile("calm", late=0.05, repeated=0.1, lost_wakes=0.2, actions=JOINS)
REPEATS = Profile("repeats", repeated=0.3, actions=JOINS, lease_ms=1_000)
CRASHES = Profile(
    "crashes",
    actions=(*JOINS, ("crash", 2), ("restart", 1), ("replace", 1)),
    calm=False,
    lease_ms=3_000,
)
STALLS = Profile(
    "stalls",
    late=0.05,
    repeated=0.1,
    lost=0.03,
    lost_wakes=0.2,
    actions=(
        *JOINS,
        *(("crash", 1), ("restart", 1), ("replace", 1), ("stall", 3), ("outage", 1)),
    ),
    calm=False,
)
FAULTS = replace(
    STALLS, name="faults", actions=(*STALLS.actions, ("rollback", 3), ("clock_back", 1))
)
FAILOVERS = Profile("failovers", actions=(*JOINS, ("rollback", 8), ("clock_back", 2)), calm=False)
PROFILES = (QUIET, CALM, REPEATS, CRASHES, STALLS, FAULTS, FAILOVERS)


class World:
    """Everything in a run."""

    group_class = GroupScripts
    partition_class = PartitionScripts
    worker_class = Worker

    def __init__(self, seed, profile):
        self.seed, self.profile = seed, profile
        self.random = random = random_module.Random(f"{profile.name} {seed}")
        self.scheduler = Scheduler()
        self.lease_ms = profile.lease_ms
        self.network = Network(self.scheduler, random, profile, self.lease_ms)
        self.start_partitions = random.randint(1, 5)
        self.server_offset = self.saved_until = 0
        self.clock_was_set_back = self.was_rolled_back = False
        self.goes_back = random.random() < 0.5
        self.sink_is_fenced = random.random() < 0.7
        self.commits_effects = random.random() < 0.5
        # Another generator, so that the rest of a run does not depend on it.
        self.has_bad = random_module.Random(f"bad {seed}").random() < 0.5
        names = ["g", "h"] if random.random() < 0.15 else ["g"]
        self.groups = {name: self.group_class(self.server_now) for name in names}
        self.partitions, self.ids, self.trackers = {}, {}, []
        self.lives = {}  # how often the server of a partition has failed over
        self.add_partitions(self.start_partitions)
        self.workers, self.names, self.nonces = [], 0, 0
        self.disturbed = dict.fromkeys(names, 0)
        self.checks = Checks(self)

    def server_now(self):
        return EPOCH_US + self.scheduler.now + self.server_offset

    def data_now(self):
        return EPOCH_US + self.scheduler.now

    def add_partitions(self, count):
        for partition in range(len(self.partitions), count):
            self.partitions[partition] = self.partition_class(self.data_now)
            self.ids[partition], self.lives[partition] = [], 0

    def run(self):
        """Random actions for a while, then calm, then all is done, then all leave."""
        random = self.random
        bound = self.bound_us()
        for group in self.groups:
            self.join(group)
        end = random.randint(600, 2_500) * MS
        while self.scheduler.now < end:
            self.step(random.randint(1, 120) * MS, bound)
            self.act()
        self.calm_down()
        # Late calls are under way for up to two leases, and may renew leases of the dead.
        late = 3 if self.profile.late or self.profile.repeated else 0
        self.step((self.lease_ms * (late + (not self.profile.calm)) + 800) * MS, bound)
        for group in self.groups:
            self.disturbed[group] = min(self.disturbed[group], self.scheduler.now - 10**9)
        self.step(10 * MS, 0)
        self.until(self.is_done, 3_000)
        self.step(300 * MS, 0)
        self.checks.at_rest()
        for worker in self.workers:
            worker.locally(worker.control.leave)
        self.until(lambda: all(worker.ended for worker in self.workers), 1_500)
        left = [worker.name for worker in self.workers if not worker.ended]
        self.checks.require(not left, "G4", f"{left} cannot leave")
        self.checks.counted()

    def bound_us(self):
        """The longest time without an owner, after the last disturbance of the group."""
        late = 0 if self.profile.late == 0 else 4 * self.lease_ms
        crashed = 0 if self.profile.calm else self.lease_ms
        return (500 + 50 + crashed + late) * MS

    def step(self, duration_us, bound_us):
        """Let time pass, and check every 10 ms who serves what."""
        end = self.scheduler.now + duration_us
        while self.scheduler.now < end:
            self.scheduler.run(min(end, self.scheduler.now + 10 * MS))
            self.supervise()
            self.checks.serving(bound_us, self.disturbed)

    def supervise(self):
        """Start a worker where the last one ended because a newer session had its name."""
        for group in self.groups:
            ended = {worker.control.seat for worker in self.workers if worker.group == group}
            if not self.members(group) and Seat.REPLACED in ended:
                self.join(group)

    def until(self, condition, limit_ms):
        end = self.scheduler.now + limit_ms * MS
        while not condition() and self.scheduler.now < end:
            self.scheduler.run(self.scheduler.now + 10 * MS)

    def is_done(self):
        return all(
            group in scripts.state.fences
            and scripts.state.fences[group].offset >= scripts.state.end
            for partition, scripts in self.partitions.items()
            for group in self.groups
            if self.ids[partition]
        )

    def act(self):
        weights = self.profile.weights
        (name,) = self.random.choices(list(weights), list(weights.values()))
        getattr(self, f"do_{name}")()

    def calm_down(self):
        """No more faults; calls that are under way still arrive, and repetitions as well."""
        self.network.profile = Profile("end")
        for worker in self.workers:
            if worker.stalled:
                worker.wake()
        for group in self.groups:
            if self.profile is not CRASHES:  # whose last crash is the last disturbance
                self.disturb(group)
            if not self.members(group):
                self.join(group)

    def members(self, group):
        return [
            worker
            for worker in self.workers
            if worker.group == group and not worker.ended and not worker.control.is_leaving
        ]

    def disturb(self, group):
        self.disturbed[group] = self.scheduler.now

    def pick_group(self):
        return self.random.choice(list(self.groups))

    def join(self, group, name=None):
        if name is None:
            self.names += 1
            name = f"w{self.names}"
        self.nonces += 1
        worker = self.worker_class(self, group, name, str(self.nonces))
        if not self.members(group):
            self.disturb(group)
        self.workers.append(worker)
        worker.locally(lambda: None)

    def do_join(self):
        group = self.pick_group()
        if len(self.members(group)) < 5:
            self.join(group)

    def do_leave(self):
        group = self.pick_group()
        # A repeated join of a session that was over sooner costs a lease: see the README.
        born_before = self.scheduler.now - self.lease_ms * MS // 4
        members = [worker for worker in self.members(group) if worker.born < born_before]
        if len(members) > 1 or self.random.random() < 0.2:
            for worker in members if self.random.random() < 0.1 else members[:1]:
                self.disturb_if_alone(worker)
                worker.locally(worker.control.leave)

    def disturb_if_alone(self, worker):
        if len(self.members(worker.group)) <= 1 or not self.profile.calm:
            self.disturb(worker.group)

    def pick(self):
        members = [worker for worker in self.workers if not worker.ended and not worker.stalled]
        return self.random.choice(members) if members else None

    def do_crash(self):
        worker = self.pick()
        if worker is not None:
            worker.crash()
            self.disturb(worker.group)
        return worker

    def do_restart(self):
        worker = self.do_crash()
        if worker is not None:
            delay = self.random.randint(0, 800) * MS
            self.scheduler.after(delay, self.join, worker.group, worker.name)

    def do_replace(self):
        worker = self.pick()
        if worker is not None:
            self.join(worker.group, worker.name)
            self.disturb(worker.group)

    def do_stall(self):
        worker = self.pick()
        if worker is not None:
            worker.stall()
            self.disturb(worker.group)
            self.scheduler.after(self.random.randint(1, 1_000) * MS, self.wake, worker)

    def wake(self, worker):
        if worker.stalled:
            worker.wake()
            self.disturb(worker.group)

    def do_outage(self):
        self.network.down_until = self.scheduler.now + self.random.randint(1, 600) * MS
        self.scheduler.after(self.network.down_until - self.scheduler.now, self.disturb_all)

    def disturb_all(self):
        for group in self.groups:
            self.disturb(group)

    def do_clock_back(self):
        if self.goes_back:
            self.clock_was_set_back = True
            self.server_offset -= self.random.randint(1, 5_000) * MS
            self.disturb_all()

    def do_rollback(self):
        """A server loses its last writes: control, a partition, or all of them together."""
        if self.scheduler.now < self.saved_until:
            return  # two at a time would bring back what was lost
        control = partitions = True
        match self.random.choice(("all", "control", "partition")):
            case "control":
                partitions = False
            case "partition":
                control = False
        chosen = self.partitions if partitions else {}
        if partitions and not control:
            chosen = {self.random.choice(list(self.partitions)): None}
        saved = {partition: self.save(self.partitions[partition]) for partition in chosen}
        groups = {name: self.save(scripts) for name, scripts in self.groups.items() if control}
        delay = self.random.randint(1, 400) * MS
        self.saved_until = self.scheduler.now + delay
        self.scheduler.after(delay, self.restore, groups, saved)

    def save(self, scripts):
        return copy.deepcopy(scripts.state)

    def restore(self, groups, partitions):
        self.was_rolled_back = True
        for name, state in groups.items():
            self.groups[name].state = state
            self.scheduler.after(self.random.randint(1, 500) * MS, self.resize_groups)
        if groups and self.random.random() < 0.5:
            self.do_clock_back()  # the replica that takes over has another clock
        for partition, state in partitions.items():
            self.lives[partition] += 1
            self.restore_partition(self.partitions[partition], state)
            self.ids[partition] = [i for i in self.ids[partition] if i <= state.end]
            self.checks.rolled_back(partition)
        self.disturb_all()

    def restore_partition(self, scripts, state):
        scripts.state = state

    def do_add(self):
        partition = self.random.choice(list(self.partitions))
        for _ in range(self.random.randint(1, 12)):
            self.ids[partition].append(self.partitions[partition].add(b""))

    def do_trim(self):
        self.random.choice(list(self.partitions.values())).trim(set(self.groups))

    def do_resize(self):
        count = len(self.partitions) + 1
        if count <= 7:
            self.add_partitions(count)
            self.start_partitions = count
            self.resize_groups()

    def resize_groups(self):
        """The stream has its own record of the count, which workers compare now and then."""
        for group in self.groups:
            self.run_script(group, self.groups[group].resize, len(self.partitions))

    def run_script(self, group, script, *arguments):
        """Run a script of a group, check what it changed, and wake the workers."""
        state = self.groups[group].state
        version, owners, leases = state.version, dict(state.owners), dict(state.leases)
        reply = script(*arguments)
        for session, end in state.leases.items():
            if leases.get(session) != end:
                self.checks.renewed(session, end)
        self.checks.owners_changed(group, owners, state.owners)
        if state.version != version:
            for worker in self.workers:
                lost = self.random.random() < self.network.profile.lost_wakes
                if worker.group == group and not worker.ended and not lost:
                    worker.later(self.network.delay(), self.notice, worker, group)
        return reply

    def notice(self, worker, group):
        if self.scheduler.now >= self.network.down_until:
            worker.control.notice(self.groups[group].state.version)

    def open(self, scripts, group, held):
        reply = scripts.open(group, held.token, held.session)
        if isinstance(reply, Opened):
            self.checks.opened(group, held)
        return reply

    def is_bad(self, offset):
        """Whether the handler raises for a record: one of seven, if any."""
        return self.has_bad and (offset * 2_654_435_761 >> 9) % 7 == 0

    def commit(self, scripts, group, held, offset, done, commands):
        arguments = (group, held.token, held.session, offset, done)
        reply = scripts.commit(*arguments, commands=commands)
        if reply is Commit.STORED:
            self.checks.committed(group, held, offset)
        return reply
