"""The scripts of groups and partitions on both backends, under a clock by hand.

Those on Redis have the methods of those in memory, and show what they store in the same way.
"""

import json
from collections import deque

from batchqueue.groups.backend import CommitRequest, NewRecord, Opening, SetAside
from batchqueue.groups.memory import (
    FenceState,
    GroupScripts,
    GroupState,
    MemoryPartitionState,
    Owner,
    PartitionScripts,
)
from batchqueue.groups.messages import Entry
from batchqueue.groups.record import Start, format_id, parse_id
from batchqueue.groups.redis.client import Library, Link, _script
from batchqueue.groups.redis.node import Server
from batchqueue.groups.redis.scripts import (
    PartitionCalls,
    PartitionKeys,
    RedisGroup,
    _by_partition,
    _member,
    _texts,
    committed,
    control_keys,
    info_of,
    letter_of,
    opened,
    parts_of,
    was_set_aside,
)

STREAM = "orders"
CLOCK_KEY = "clock of the test"
_CLOCK = f"""
local function clock_us()
  return tonumber(redis.call('GET', '{CLOCK_KEY}'))
end

-- As Redis makes ids, but with the clock of the test.
local function new_id(stream)
  local now_ms, last_ms, sequence = math.floor(clock_us() / 1000), '0', '0'
  if redis.call('EXISTS', stream) == 1 then
    for index, word in ipairs(redis.call('XINFO', 'STREAM', stream)) do
      if word == 'last-generated-id' then
        local last = redis.call('XINFO', 'STREAM', stream)[index + 1]
        last_ms, sequence = string.match(last, '^(%d+)-(%d+)$')
      end
    end
  end
  if now_ms > tonumber(last_ms) then
    return string.format('%.0f-0', now_ms)
  end
  return last_ms .. '-' .. (tonumber(sequence) + 1)
end
"""


class LibraryByHand(Library):
    """The scripts with the clock of the test: the time and the ids of records follow it."""

    def __init__(self, **replacements):
        super().__init__(clock=_CLOCK)
        self._replacements = {"'XADD', STREAM, '*'": "'XADD', STREAM, new_id(STREAM)"}
        self._replacements |= replacements
        self._replaced = {}

    def __getitem__(self, name):
        if name not in self._replaced:
            text = super().__getitem__(name).text
            for old, new in self._replacements.items():
                text = text.replace(old, new)
            self._replaced[name] = _script(text)
        return self._replaced[name]


LIBRARY = LibraryByHand()
EFFECTS = f"bq:{{{STREAM}/0}}:effects"


class Clock:
    def __init__(self):
        self.us = 1_700_000_000_000_000

    def __call__(self):
        return self.us

    def pass_ms(self, ms):
        self.us += ms * 1_000


def link_to(server):
    return Link(Server(server.url), STREAM, 30)


class MemoryGroup(GroupScripts):
    def retarget(self, partition, session):
        self.state.targets[partition] = session


class ScriptedGroup(RedisGroup):
    """The scripts of the group g on Redis."""

    def __init__(self, server, clock, library=LIBRARY):
        self.link = link_to(server)
        self.clock = clock
        super().__init__(self.link, STREAM, "g", library)

    def _call(self, name, *arguments):
        self.link.run([("SET", CLOCK_KEY, self.clock())])
        return super()._call(name, *arguments)

    def time(self):
        return self.clock()

    def retarget(self, partition, session):
        self.link.run([("HSET", self._keys[5], partition, session)])

    @property
    def state(self):
        """What is stored; a copy."""
        meta, lease, term, info, own, want, last, load, stats, seq, _ = control_keys(STREAM, "g")
        hashes = (meta, term, info, own, want, last, stats, seq)
        *found, leases, weights = self.link.run(
            [
                *(("HGETALL", key) for key in hashes),
                ("ZRANGE", lease, 0, -1, "WITHSCORES"),
                ("GET", load),
            ]
        )
        meta, term, info, own, want, last, stats, seq = found
        meta = _texts(meta)

        def number(field):
            return int(meta.get(field) or 0)

        owners = (
            (partition, owner.rpartition(" ")) for partition, owner in _by_partition(own).items()
        )
        return GroupState(
            partitions=number("p"),
            version=number("ver"),
            member_version=number("mver"),
            token=number("tok"),
            dirty=bool(number("dirty")),
            since_ms=number("since"),
            plan_at_ms=number("due"),
            ticket_ms=number("tick") if meta.get("tick") else None,
            planned_ms=number("planned"),
            leases={session: int(end) for session, end in _texts(leases).items()},
            lease_ms={session: int(term) for session, term in _texts(term).items()},
            members={session: _member(text) for session, text in _texts(info).items()},
            owners={p: Owner(session, int(token)) for p, (session, _, token) in owners},
            targets=_by_partition(want),
            last_owner=_by_partition(last),
            weights={int(p): weight for p, weight in json.loads(weights or "{}").items()},
            stats=_texts(stats),
            numbers={session: int(number) for session, number in _texts(seq).items()},
            events=deque(self.history()),
        )


class ScriptedPartition:
    """The scripts of the partition orders/0 on Redis."""

    def __init__(self, server, clock, library=LIBRARY):
        self.link = link_to(server)
        self.clock = clock
        self._library = library
        self._keys = PartitionKeys(STREAM, 0)

    def _call(self, group, name, *arguments):
        calls = PartitionCalls(STREAM, group, self._library)
        self.link.run([("SET", CLOCK_KEY, self.clock())])
        [reply] = self.link.call([getattr(calls, name)(*arguments)])
        return reply

    def add(self, value, key=None, headers=(), *, max_len=None):
        record = NewRecord(0, value, key, headers)
        ids = self._call("", "add", 0, 10**9 if max_len is None else max_len, [record])
        return parse_id(ids[0]) if ids else None

    def read(self, after, count):
        words = ("XRANGE", self._keys.records, f"({format_id(after)}", "+", "COUNT", count)
        [items] = self.link.run([words])
        return [Entry(parse_id(name), *parts_of(fields)) for name, fields in items]

    def open(self, group, token, session, start=Start.EARLIEST):
        return opened(self._call(group, "open", Opening(0, token, session), start))

    def commit(self, group, token, session, offset, done, *, commands=()):
        request = CommitRequest(0, token, session, offset, done, tuple(commands))
        return committed(self._call(group, "commit", request))

    def set_aside(self, group, token, session, letters):
        request = SetAside(0, token, session, tuple(letters))
        return was_set_aside(self._call(group, "set_aside", request))

    def info(self, group):
        return info_of(self._call(group, "info", 0))

    def reset(self, group, offset, done):
        self._call(group, "reset", 0, offset, done)

    def forget(self, group):
        self._call(group, "forget", 0)

    def letters(self, group, limit):
        [items] = self.link.run([("XRANGE", self._keys.dead(group), "-", "+", "COUNT", limit)])
        return [letter_of(item) for item in items]

    def send_back(self, group, letters):
        return self._call(group, "send_back", 0, letters)

    def trim(self, groups):
        return self._call("", "trim", 0, sorted(groups))

    @property
    def state(self):
        """What is stored; a copy."""
        *_, groups, effects = self.link.run(
            [
                ("ZRANGE", self._keys.tag + "groups", 0, -1),
                ("LRANGE", EFFECTS, 0, -1),
            ]
        )
        groups = [group.decode() for group in groups]
        infos = {group: self.info(group) for group in groups}
        nothing = self.info("")
        dead = {group: self.letters(group, 10**6) for group in groups}
        return MemoryPartitionState(
            entries=self.read(0, 10**6),
            end=nothing.end,
            added=nothing.added,
            fences={group: self._fence(group, info) for group, info in infos.items()},
            dead={group: letters for group, letters in dead.items() if letters},
            effects=[("RPUSH", EFFECTS, each.decode()) for each in effects],
        )

    def _fence(self, group, info):
        [aside] = self.link.run([("SMEMBERS", f"{self._keys.tag}aside:{group}")])
        aside = set(map(parse_id, aside))
        return FenceState(info.token, info.session, info.offset, info.done, aside)


GROUPS = {
    "memory": lambda request, clock: MemoryGroup(clock),
    "redis": lambda request, clock: ScriptedGroup(request.getfixturevalue("redis_server"), clock),
}
PARTITIONS = {
    "memory": lambda request, clock: PartitionScripts(clock),
    "redis": lambda request, clock: ScriptedPartition(
        request.getfixturevalue("redis_server"), clock
    ),
}
