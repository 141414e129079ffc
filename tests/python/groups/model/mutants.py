"""The protocol without one of its rules. Each must break a promise within a number of seeds."""

from dataclasses import dataclass, replace

from batchqueue.groups.control import Control
from batchqueue.groups.memory import GroupScripts, PartitionScripts
from batchqueue.groups.messages import EventKind

from .worker import Worker
from .world import CALM, CRASHES, FAILOVERS, FAULTS, QUIET, REPEATS, STALLS, World


@dataclass(frozen=True)
class Mutant:
    """A world in which something is missing.

    Attributes:
        name: The rule, and what is missing.
        world: The world.
        profile: The runs that show it.
        seeds: It must be red within so many seeds.
    """

    name: str
    world: type
    profile: object
    seeds: int = 400


def group(**methods):
    return {"group_class": type("Group", (GroupScripts,), methods)}


def partition(**methods):
    return {"partition_class": type("Partition", (PartitionScripts,), methods)}


def worker(**methods):
    return {"worker_class": type("MutantWorker", (Worker,), methods)}


def world(*parts, **methods):
    return type(
        "MutantWorld", (World,), {k: v for part in parts for k, v in part.items()} | methods
    )


def count_up(self, last):
    return last + 1


def grant_without_seen(self, session, partition, seen):
    return GroupScripts._grant(self, session, partition, 0)


def grant_same_token(self, session, partition, seen):
    owner = self.state.owners.get(partition)
    if owner is not None and owner.session == session:
        return owner.token
    return GroupScripts._grant(self, session, partition, seen)


def restore_without_fences(self, scripts, state):
    """The fences are stored elsewhere, so they do not go back together with the records."""
    scripts.state = replace(state, fences=scripts.state.fences)


def count_refused_as_done(self, held, chunk, offsets, seen):
    self.settle(held, chunk, offsets)


def never_leaving(self, session, partition):
    return self.state.targets.get(partition) == session


def revoke_by_target_only(self, session, partition):
    return self.state.targets.get(partition, session) != session


def commit_position(self, held):
    mark = held.tracker.to_commit()
    position = held.tracker.position
    return mark._replace(offset=position) if mark is not None else None


def repeat_commit_with_more(self, held):
    mark = self.mark(held)
    if mark is not None and not held.dead:
        held.committing = (mark, held.committing[1] + held.commands)
        held.commands = []
    self.send_commit(held)


def renew_whatever_the_clock_does(self, session, lease_ms, now):
    GroupScripts._renew(self, session, lease_ms, now)
    self.state.lease_ms[session] = 10**12


def next_beat_is_regular(self, session, now):
    return 10**9


class LeaseFromReply(Control):
    """Reckons its lease from the time at which it learns of it."""

    def reply(self, call, reply, now_ms):
        self.replied_ms = now_ms
        super().reply(call, reply, now_ms)

    def _extend(self, call):
        self.deadline_ms = max(self.deadline_ms, self.replied_ms + 0.95 * self.lease_ms)


class NewInEachSession(Control):
    """Is as new as its last join, and not as its process."""

    def _begin_session(self):
        super()._begin_session()
        self._process = None


class Reviving(GroupScripts):
    """A beat makes a member of a session that was removed."""

    def __init__(self, clock):
        super().__init__(clock)
        self.known = {}

    def beat(self, session, number, lease_ms, stats=""):
        with self._changed:
            if session not in self.state.members and session in self.known:
                self.state.members[session] = self.known[session]
                self._renew(session, lease_ms, self._now_ms())
                self._change_members(EventKind.JOIN, self._now_ms(), session)
            return super().beat(session, number, lease_ms, stats)

    def join(self, session, lease_ms, member, partitions, **asked):
        self.known[session] = member
        return super().join(session, lease_ms, member, partitions, **asked)


def always(self, *arguments):
    return True


def never(self, *arguments):
    return False


def plan_unchecked(self, member_version, targets):
    return True


def drained_before_commit(self, held):
    return held.tracker.counts.in_hand == 0 and held.tracker._revoked and not held.tracker._ended


def isolate_without_waiting(self, held, chunk, offsets):
    self.set_aside(held, chunk, offsets[0], lambda: None)
    self.proceed(held, chunk, offsets[1:])


def set_aside_again(self, group, token, session, letters):
    fence = self.state.fences.get(group)
    if fence is not None:
        fence.aside.clear()
    return PartitionScripts.set_aside(self, group, token, session, letters)


MUTANTS = (
    Mutant("R1 commit checks nothing", world(partition(_may_commit=always)), FAULTS),
    Mutant("R2 counters", world(group(_next=count_up)), FAULTS),
    Mutant("R3 seen is ignored", world(group(_grant=grant_without_seen)), FAULTS),
    Mutant("R4 repeated token", world(group(_grant=grant_same_token)), FAULTS),
    Mutant("R5 late sync", world(group(_is_late=never)), CALM),
    Mutant("R6 join of an older session", world(group(_is_older=never)), FAULTS),
    Mutant("R6 incarnation of the session", world(worker(control_class=NewInEachSession)), CRASHES),
    Mutant("R6 late join", world(group(_is_late_join=never)), REPEATS),
    Mutant("R7 beat revives", world({"group_class": Reviving}), REPEATS),
    Mutant("R8 fences elsewhere", world(restore_partition=restore_without_fences), FAULTS),
    Mutant("R9 refused is done", world(worker(refused=count_refused_as_done)), FAILOVERS),
    Mutant("R10 plan unchecked", world(group(_is_current=plan_unchecked)), FAULTS),
    Mutant(
        "R11 leaving keeps its targets",
        world(group(_is_target=never_leaving, _is_revoked=revoke_by_target_only)),
        QUIET,
    ),
    Mutant("R12 commit what was fetched", world(worker(mark=commit_position)), QUIET),
    Mutant("R12 offset goes back", world(partition(_is_new=always)), FAULTS),
    Mutant("R12 release before the commit", world(worker(is_drained=drained_before_commit)), CALM),
    Mutant("R13 lease from the reply", world(worker(control_class=LeaseFromReply)), STALLS),
    Mutant("R14 connection survives", world(worker(forget=lambda self, partition: None)), FAULTS),
    Mutant("R15 clock set back", world(group(_renew=renew_whatever_the_clock_does)), FAULTS),
    Mutant("R16 regular beats only", world(group(_next_ms=next_beat_is_regular)), QUIET),
    Mutant(
        "R17 commit repeated with more commands",
        world(worker(repeat_commit=repeat_commit_with_more)),
        STALLS,
    ),
    Mutant("R18 later records first", world(worker(isolate=isolate_without_waiting)), CRASHES),
    Mutant("R18 set aside twice", world(partition(set_aside=set_aside_again)), CRASHES),
)
