"""The scripts on Redis do what those in memory do: random calls to both, one after the other.

After each call the replies are compared, and all that is stored. A failure prints the calls.
"""

import itertools
import os
import random
from dataclasses import replace

import pytest
import redis

from batchqueue.groups.memory import PartitionScripts
from batchqueue.groups.messages import Beaten, Entry, EventKind, Incarnation, Member, Synced
from batchqueue.groups.record import Start
from batchqueue.groups.redis.client import _CONTROL, _PARTITION
from groups_support.scripts import (
    EFFECTS,
    LIBRARY,
    Clock,
    LibraryByHand,
    MemoryGroup,
    ScriptedGroup,
    ScriptedPartition,
)

SEEDS = range(int(os.environ.get("BATCHQUEUE_GROUPS_RUNS", 140)) // 7)
STEPS = 150
HOSTS = ["h", "two words", 'a"b\\c', "küste", '","leaving":false', "false", ""]
LEASES = [1_000, 5_000, 60_000]
PASSES_MS = [*[0, 1, 7] * 5, *[50] * 5, 49, 51, 125, 251, 449, 500, 501, 1_000, 6_000, 31_000]


def in_any_order_of_deaths(events):
    """Sessions whose leases were over together may be removed in any order."""
    runs = itertools.groupby(events, lambda event: (event.kind, event.at_ms))
    plain = []
    for (kind, _), run in runs:
        run = [
            replace(event, version=0, partitions=tuple(sorted(event.partitions))) for event in run
        ]
        plain += sorted(run, key=lambda event: event.session) if kind is EventKind.DEAD else run
    return plain, [event.version for event in events]


class GroupCalls:
    """Random calls of a group, most of them sensible."""

    def __init__(self, seed, server, library=LIBRARY):
        self.random = random.Random(seed)
        self.clock = Clock()
        self.memory = MemoryGroup(self.clock)
        self.redis = ScriptedGroup(server, self.clock, library)
        self.sessions = {}  # by session: the member, the last number, what is held
        self.ticket = None
        self.done = []

    def step(self):
        kinds = ["beat"] * 6 + ["sync"] * 9 + ["plan"] * 4 + ["release"] * 2 + ["clock"] * 3
        kinds += ["join", "join", "leaving", "leave", "resize", "info", "history"]
        if not self.memory.state.members:
            kinds += ["join"] * 20
        getattr(self, "do_" + self.random.choice(kinds))()

    def call(self, name, *arguments, **options):
        self.done.append((self.clock.us, name, arguments, options))
        expected = getattr(self.memory, name)(*arguments, **options)
        found = getattr(self.redis, name)(*arguments, **options)
        if name == "history":
            expected, found = map(in_any_order_of_deaths, (expected, found))
        assert found == expected, self.story()
        self.compare_states()
        return found

    def compare_states(self):
        expected, found = (vars(each.state).copy() for each in (self.memory, self.redis))
        events = [in_any_order_of_deaths(each.pop("events")) for each in (expected, found)]
        assert found == expected, self.story()
        assert events[1] == events[0], self.story()

    def story(self):
        return "\n".join(map(repr, self.done))

    def any_session(self):
        members = list(self.memory.state.members)
        if members and self.random.random() < 0.9:
            return self.random.choice(members)
        return self.random.choice([*self.sessions, "ghost"])

    def do_clock(self):
        ms = self.random.choice(PASSES_MS)
        if self.random.random() < 0.05:
            ms = -self.random.choice([1, 300, 4_000, 90_000])
        self.clock.pass_ms(ms)
        self.clock.us += self.random.randrange(1_000)

    def do_join(self):
        name = self.random.choice("abcdé")
        incarnation = Incarnation(self.random.choice([1, 2, 10**15]), self.random.randrange(4))
        capacity = self.random.choice([1.0, 1 / 3, 2, 0.1])
        host = self.random.choice(HOSTS)
        member = Member(name, incarnation, capacity, host, self.random.randrange(10**6))
        nonce = self.random.choice("xxxxy")  # two processes may read the same time
        session = f"{name}:{nonce}:{incarnation.process}:{incarnation.session}"
        if self.random.random() < 0.1 and self.sessions:
            session = self.any_session()
            member = self.sessions.get(session, [member])[0]
        self.sessions.setdefault(session, [member, 0, {}])
        late_us = self.random.choice([0, 0, 0, 124_999, 125_000, 125_001, 250_001])
        lease_ms = self.random.choice(LEASES)
        partitions = self.random.choice([1, 3, 12])
        self.call("join", session, lease_ms, member, partitions, asked_us=self.clock.us - late_us)

    def number(self, session):
        known = self.sessions.get(session)
        if known is None or self.random.random() < 0.1:
            return self.random.randrange(12)
        known[1] += 1
        return known[1]

    def do_beat(self):
        session = self.any_session()
        stats = self.random.choice(["", '{"rates":{"1":2.5}}', "ü"])
        reply = self.call("beat", session, self.number(session), self.random.choice(LEASES), stats)
        if isinstance(reply, Beaten) and reply.ticket:
            self.ticket = reply.ticket

    def do_plan(self):
        version = self.memory.state.member_version
        if self.random.random() < 0.1:
            version = self.ticket.member_version if self.ticket else version + 1
        members = list(self.memory.state.members) or ["ghost"]
        if self.random.random() < 0.05:
            members.append("ghost")
        count = self.random.choice([14, 14, 13, 3, 0])
        targets = {p: self.random.choice(members) for p in self.random.sample(range(14), count)}
        if self.random.random() < 0.3:
            targets = dict(self.memory.state.targets)
        weights = {p: self.random.random() * 10**9 for p in targets}
        self.call("plan", self.any_session(), version, targets, weights)

    def do_sync(self):
        session = self.any_session()
        _, _, held = self.sessions.get(session, (None, 0, {}))
        given = dict(held)
        if self.random.random() < 0.2:
            given[self.random.randrange(14)] = self.clock.us + self.random.randrange(5)
        if given and self.random.random() < 0.2:
            given.pop(self.random.choice(list(given)))
        seen = self.random.choice([0, 0, 0, self.clock.us + 5, self.clock.us + 10**9])
        reply = self.call("sync", session, self.number(session), seen, given)
        if isinstance(reply, Synced):
            for partition in reply.lost:
                held.pop(partition, None)
            held.update(reply.grants)

    def do_release(self):
        session = self.any_session()
        _, _, held = self.sessions.get(session, (None, 0, {}))
        released = self.random.sample(list(held.items()), self.random.randint(0, len(held)))
        if self.random.random() < 0.2:
            released.append((13, self.clock.us))
        for partition, _ in released:
            held.pop(partition, None)
        self.call("release", session, released)

    def do_resize(self):
        if self.random.random() < 0.3:
            self.call("resize", self.random.randrange(14))

    def do_leaving(self):
        self.call("leaving", self.any_session())

    def do_leave(self):
        self.call("leave", self.any_session())

    def do_info(self):
        self.call("info")

    def do_history(self):
        self.call("history", self.random.choice([0, self.memory.state.member_version]))


class PartitionCalls:
    """Random calls of a partition that two groups read."""

    def __init__(self, seed, server, library=LIBRARY):
        self.random = random.Random(seed)
        self.clock = Clock()
        self.memory = PartitionScripts(self.clock)
        self.redis = ScriptedPartition(server, self.clock, library)
        self.offsets = [0]
        self.entries = {}
        self.done = []

    def step(self):
        kinds = ["add"] * 8 + ["open"] * 3 + ["commit"] * 6 + ["set_aside"] * 3 + ["trim"] * 2
        kinds += ["info", "letters", "send_back", "read", "clock", "clock", "reset", "forget"]
        getattr(self, "do_" + self.random.choice(kinds))()

    def call(self, name, *arguments, **options):
        self.done.append((self.clock.us, name, arguments, options))
        expected = getattr(self.memory, name)(*arguments, **options)
        found = getattr(self.redis, name)(*arguments, **options)
        assert found == expected, self.story()
        stored, other = (vars(each.state).copy() for each in (self.memory, self.redis))
        # Redis keeps no key for nothing.
        stored["dead"] = {group: each for group, each in stored["dead"].items() if each}
        assert other == stored, self.story()
        for entry in stored["entries"]:
            if entry.offset not in self.entries:
                self.offsets.append(entry.offset)
                self.entries[entry.offset] = entry
        return found

    def story(self):
        return "\n".join(map(repr, self.done))

    def fence(self):
        """Mostly the group, the token and the session of a fence."""
        group = self.random.choice("gh")
        there = self.memory.state.fences.get(group)
        if there is None or self.random.random() < 0.15:
            return group, self.random.randrange(4), self.random.choice("abc")
        return group, there.token, there.session

    def any_offset(self):
        return self.random.choice(self.offsets[-6:] if self.random.random() < 0.7 else self.offsets)

    def do_clock(self):
        self.clock.us += self.random.choice([0, 1, 999, 1_000, 7_654, 10**6, -5_000, -(10**7)])

    def do_add(self):
        headers = (("type", b"\xff\x00"), ("type", b""), ("ü:v", b"1"))
        self.call(
            "add",
            self.random.choice([b"", b"v", b"\x00\r\n\xff", b"x" * 300]),
            self.random.choice([None, b"", b"key"]),
            headers[: self.random.choice([0, 0, 1, 3])],
            max_len=self.random.choice([None, None, 3, 8]),
        )

    def do_open(self):
        group, token, session = self.fence()
        token += self.random.choice([0, 1, 1, 10**15])
        token = min(token, 2**53 - 1)
        self.call("open", group, token, session, self.random.choice(list(Start)))

    def do_commit(self):
        effects = [("RPUSH", EFFECTS, f"{number}") for number in range(self.random.randrange(3))]
        fence, offset = self.fence(), self.any_offset()
        self.call("commit", *fence, offset, self.offsets.index(offset), commands=effects)

    def do_set_aside(self):
        chosen = [offset for offset in self.offsets[-9:] if offset]
        chosen = self.random.sample(chosen, self.random.randint(0, min(3, len(chosen))))
        letters = [
            self.entries[offset]._replace(headers=(("dead-error", b"no"),)) for offset in chosen
        ]
        self.call("set_aside", *self.fence(), letters)

    def do_trim(self):
        self.call("trim", self.random.choice([{"g"}, {"h"}, {"g", "h"}, {"g", "h"}, set()]))

    def do_info(self):
        self.call("info", self.random.choice("gh"))

    def do_letters(self):
        self.call("letters", self.random.choice("gh"), self.random.choice([1, 100]))

    def do_send_back(self):
        group = self.random.choice("gh")
        letters = self.memory.letters(group, self.random.randrange(4))
        if self.random.random() < 0.3:
            letters = letters[1:] + [Entry(5 << 20 | 7, b"x")] * self.random.randrange(2)
        self.call("send_back", group, letters)

    def do_read(self):
        self.call("read", self.any_offset(), self.random.choice([1, 5, 100]))

    def do_reset(self):
        if self.random.random() < 0.5:
            offset = self.any_offset()
            self.call("reset", self.random.choice("gh"), offset, self.offsets.index(offset))

    def do_forget(self):
        if self.random.random() < 0.3:
            self.call("forget", self.random.choice("gh"))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("calls", [GroupCalls, PartitionCalls])
def test_both_backends_reply_and_store_the_same(redis_server, calls, seed):
    run(calls, seed, redis_server)


def run(calls, seed, server, library=LIBRARY):
    both = calls(seed, server, library)
    try:
        for _ in range(STEPS):
            both.step()
    finally:
        both.redis.link.close()


# What a rule is in the scripts, and the scripts without it.
GROUP_FAULTS = {
    "R2": ("return math.max(last + 1, now_us)", "return last + 1"),
    "R3 seen": ("next_above(math.max(token, seen))", "next_above(token)"),
    "R5": ("if tonumber(number) <= tonumber(", "if tonumber(number) < tonumber("),
    "R6 late": ("math.floor(tonumber(lease_ms) * 1000 / 4)", "10 ^ 12"),
    "R6 older session": ("its_number >= number", "its_number > number"),
    "R6 older process": ("if its_process > process or", "if"),
    "R7": ("local refusal = refuse(session, ARGV[2])\n", "local refusal\n"),
    "R10 members": ("if not is_member(target) then", "if false then"),
    "R10 version": ("if tonumber(ARGV[2]) ~= number_of('mver') then", "if false then"),
    "R10 targets": ("in_parts('HDEL', WANT, targets)", ""),
    "R11 grants": ("target == session and not who.leaving", "target == session"),
    "R11 revokes": ("if who.leaving or (target", "if (target"),
    "R15 leases": ("if number_of('at') > now then", "if false then"),
    "R15 plans": ("if left > longest then", "if false then"),
    "R16": ("math.min(soonest, tonumber(ends[index + 1]) - now)", "soonest"),
    "ticket of former members": ("set('tick', '')  -- its", "--"),
    "no wait after a death": ("set('since', text(now - LONGEST_SETTLE_MS))", ""),
    "settle time": ("math.min(now + SETTLE_MS,", "math.min(now,"),
    "freed": ("elseif is_mine then", "elseif false then"),
    "release of another token": (".. ' ' .. ARGV[index + 1]", ".. ' ' .. ARGV[3]"),
    "all digits": ("'%.0f'", "'%.14g'"),
    "0 is true in Lua": (
        "redis.call('ZSCORE', LEASE, session) ~= false",
        "redis.call('HEXISTS', TERM, session)",
    ),
    "info as it was": ("'^{\"leaving\":false', '{\"leaving\":true'", "'false', 'true'"),
}
PARTITION_FAULTS = {
    "R1 token": ("there.token ~= token or", ""),
    "R1 session": ("or there.session ~= session", ""),
    "R3": (
        "and not (token == there.token and session == there.session)",
        "and token ~= there.token",
    ),
    "R12": ("if not is_above(id, there.offset) then", "if false then"),
    "R18 twice": ("redis.call('SADD', ASIDE, id) == 1", "redis.call('SADD', ASIDE, id) >= 0"),
    "R18 done": ("if is_above(id, there.offset) and", "if"),
    "aside after a commit": ("redis.call('SREM', ASIDE, aside)", ""),
    "aside after a reset": ("redis.call('DEL', ASIDE)", ""),
    "ids are numbers": ("if #digits ~= #others then", "if false then"),
    "trim for the last group": ("is_above(done, offset)", "is_above(offset, done)"),
    "trim for all groups": ("if #ARGV ~= redis.call('ZCARD', GROUPS) then", "if false then"),
    "trim what is done": ("tonumber(sequence) + 1", "tonumber(sequence)"),
    "bound by what is not done": ("unread = math.min(", "unread = math.max("),
    "bound after a commit": ("redis.call('ZADD', GROUPS, done, ARGV[1])", ""),
    "oldest letters": ("letter[2][2] ~= id", "false"),
    "latest": ("offset, done = records.last, records.added", ""),
}
FAULTS = [(GroupCalls, name, *each) for name, each in GROUP_FAULTS.items()]
FAULTS += [(PartitionCalls, name, *each) for name, each in PARTITION_FAULTS.items()]


@pytest.mark.parametrize(
    ("calls", "right", "wrong"),
    [pytest.param(calls, *each, id=name) for calls, name, *each in FAULTS],
)
def test_script_without_a_rule_is_noticed(redis_server, calls, right, wrong):
    names = [*_CONTROL, *_PARTITION]
    assert any(right in LIBRARY[name].text for name in names)
    for seed in range(60):
        with redis_server.client() as client:
            client.flushall()
        try:
            run(calls, seed, redis_server, LibraryByHand(**{right: wrong}))
        except (AssertionError, redis.ResponseError):
            return
    pytest.fail("no call showed it")
