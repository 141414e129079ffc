"""Names of keys. On a cluster each tag in braces is a slot: keys that belong together share it."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchqueue.exceptions import ConfigError
from batchqueue.groups.backend import (
    CommitRequest,
    GroupInfo,
    MemberInfo,
    NewRecord,
    Opening,
    PartitionInfo,
    SetAside,
)
from batchqueue.groups.errors import CallRefusedError, quoted_value, shortened
from batchqueue.groups.messages import (
    Beaten,
    Command,
    Commit,
    Entry,
    Event,
    EventKind,
    Failed,
    Fenced,
    Incarnation,
    Joined,
    Member,
    Opened,
    Refusal,
    Replaced,
    Synced,
    Ticket,
)
from batchqueue.groups.record import Start, format_id, parse_id
from batchqueue.groups.redis.client import LIBRARY, Library, Link, ScriptCall

_CONTROL = (
    *("meta", "lease", "term", "info", "own", "want"),
    *("last", "load", "stats", "seq", "ctrl"),
)


def stream_key(stream: str) -> str:
    """Return the key of the number of partitions of a stream."""
    return f"bq:{{{stream}}}:meta"


def readers_key(stream: str) -> str:
    """Return the key of the names of the groups that read a stream."""
    return f"bq:{{{stream}}}:groups"


def control_keys(stream: str, group: str) -> tuple[str, ...]:
    """Return the keys of a group, in the order of `scripts/control.lua`."""
    tag = f"bq:{{{stream}|{group}}}:"
    return tuple(tag + name for name in _CONTROL)


def history_key(stream: str, group: str) -> str:
    """Return the key of the events of a group."""
    return control_keys(stream, group)[-1]


@dataclass(frozen=True, slots=True)
class PartitionKeys:
    """The keys of a partition, all in one slot (R8).

    Attributes:
        stream: The stream.
        partition: The partition.
    """

    stream: str
    partition: int

    @property
    def tag(self) -> str:
        """The prefix of all keys of the partition."""
        return f"bq:{{{self.stream}/{self.partition}}}:"

    @property
    def records(self) -> str:
        """The key of the records."""
        return self.tag + "s"

    def fence(self, group: str) -> str:
        """Return the key of the fence of a group."""
        return f"{self.tag}f:{group}"

    def dead(self, group: str) -> str:
        """Return the key of the dead letters of a group."""
        return f"{self.tag}dead:{group}"

    def all(self, group: str) -> tuple[str, ...]:
        """Return the keys that scripts take, in the order of `scripts/partition.lua`."""
        return (
            self.records,
            self.tag + "groups",
            self.tag + "meta",
            self.fence(group),
            self.dead(group),
            f"{self.tag}aside:{group}",
        )


class RedisGroup:
    """The scripts of a group on Redis. Each method is one call; `memory` has its arguments."""

    def __init__(self, link: Link, stream: str, group: str, library: Library = LIBRARY) -> None:
        """Name the group.

        Args:
            link: The connection.
            stream: The stream.
            group: The group.
            library: The scripts. Default: `LIBRARY`.
        """
        self._link = link
        self._keys = control_keys(stream, group)
        self._group = group
        self._library = library

    def time(self) -> int:
        """Return the server's time in microseconds, used as the incarnation of a process.

        It is the time of the node that has the group, because join compares it with that node's
        clock.
        """
        return int(self._call("time"))

    def join(
        self, session: str, lease_ms: int, member: Member, partitions: int, *, asked_us: int
    ) -> Joined | Replaced | Refusal:
        """Make a session a member. An older session with the same name is removed.

        Raises:
            ConfigError: Workers of another version of this package are in the group.
        """
        process, number = member.incarnation
        about = (session, lease_ms, _info(member), member.name, process, number)
        reply = self._call("join", *about, partitions, asked_us)
        match reply:
            case [b"joined", count, version]:
                return Joined(count, version)
            case [b"replaced", host, pid]:
                return Replaced(host.decode(), int(pid))
            case [b"protocol", other]:
                raise ConfigError(
                    f'group "{self._group}" speaks version {other.decode()} of the protocol, and '
                    "this batchqueue another: use the same version of batchqueue in all workers"
                )
        return _refusal(reply)

    def beat(self, session: str, number: int, lease_ms: int, stats: str = "") -> Beaten | Refusal:
        """Renew the lease of a member, and hand it a ticket if a plan is due."""
        reply = self._call("beat", session, number, lease_ms, stats)
        if isinstance(reply, bytes):
            return _refusal(reply)
        version, next_ms, leaving, ticket = reply
        return Beaten(version, next_ms, bool(leaving), _ticket(ticket) if ticket else None)

    def plan(
        self,
        session: str,
        member_version: int,
        targets: Mapping[int, str],
        weights: Mapping[int, float] | None = None,
    ) -> int | Refusal:
        """Store the targets that a member planned, and return how many of them changed."""
        load = json.dumps(dict(weights or {}))
        words = [word for pair in targets.items() for word in pair]
        return _number(self._call("plan", session, member_version, load, *words))

    def sync(
        self, session: str, number: int, seen: int, held: Mapping[int, int]
    ) -> Synced | Refusal:
        """Compare what a session holds with what it owns and is assigned."""
        words = [word for pair in held.items() for word in pair]
        reply = self._call("sync", session, number, seen, *words)
        if isinstance(reply, bytes):
            return _refusal(reply)
        version, partitions, next_ms, grants, revoked, lost = reply
        granted = dict(_pairs(grants))
        return Synced(version, partitions, granted, tuple(revoked), tuple(lost), next_ms)

    def release(self, session: str, released: Iterable[tuple[int, int]]) -> int:
        """Give up partitions, and return how many of them the session owned."""
        words = [word for pair in released for word in pair]
        return int(self._call("release", session, *words))

    def resize(self, partitions: int) -> int:
        """Raise the number of partitions, and return the new number."""
        return int(self._call("resize", partitions))

    def leaving(self, session: str) -> int | Refusal:
        """Begin to leave: all partitions are revoked. Return how many the session still owns."""
        return _number(self._call("leaving", session))

    def leave(self, session: str) -> int:
        """Remove a session, and return how many partitions it still owned."""
        return int(self._call("leave", session))

    def info(self) -> GroupInfo:
        """Return the members of the group, and the owners of its partitions."""
        version, now, infos, ends, stats, own, want, last = self._call("members")
        said = _texts(stats)
        left = {session.decode(): int(end) - now for session, end in _pairs(ends)}
        members = {
            session: MemberInfo(_member(info), left[session], said.get(session, ""))
            for session, info in _texts(infos).items()
        }
        owners = {p: owner.rpartition(" ")[0] for p, owner in _by_partition(own).items()}
        return GroupInfo(version, members, owners, _by_partition(want), _by_partition(last))

    def history(self, after: int = 0) -> list[Event]:
        """Return the events whose version is larger than `after`."""
        [entries] = self._link.run([("XRANGE", self._keys[-1], f"({after}-{2**64 - 1}", "+")])
        return [_event(*entry) for entry in entries]

    def delete(self) -> None:
        """Remove all that is stored of the group."""
        self._link.run([("DEL", *self._keys)])

    def _call(self, name: str, *arguments: Any) -> Any:
        [reply] = self._link.call([ScriptCall(self._library[name], self._keys, arguments)])
        return reply


def _info(member: Member) -> str:
    # `leaving` comes first, because a script changes it in place. Numbers are strings, because Lua
    # reads all numbers as doubles.
    process, number = member.incarnation
    about = {
        "leaving": member.leaving,
        "name": member.name,
        "process": str(process),
        "number": str(number),
        "capacity": repr(float(member.capacity)),
        "host": member.host,
        "pid": str(member.pid),
    }
    return json.dumps(about, separators=(",", ":"))


def _member(info: str) -> Member:
    about = json.loads(info)
    return Member(
        about["name"],
        Incarnation(int(about["process"]), int(about["number"])),
        float(about["capacity"]),
        about["host"],
        int(about["pid"]),
        about["leaving"],
    )


def _ticket(reply: list[Any]) -> Ticket:
    member_version, force, partitions, infos, last, load, stats = reply
    return Ticket(
        member_version,
        bool(force),
        partitions,
        {session: _member(info) for session, info in _texts(infos).items()},
        _by_partition(last),
        {int(partition): weight for partition, weight in json.loads(load).items()},
        _texts(stats),
    )


def _event(name: bytes, fields: list[bytes]) -> Event:
    about = _texts(fields)
    return Event(
        EventKind(about["kind"]),
        int(name.partition(b"-")[0]),
        int(about["at"]),
        about["session"] or None,
        about["name"] or None,
        tuple(map(int, filter(None, about["partitions"].split(",")))),
    )


def _number(reply: Any) -> int | Refusal:
    return _refusal(reply) if isinstance(reply, bytes) else int(reply)


def _refusal(reply: bytes) -> Refusal:
    return Refusal(reply.decode())


def _pairs(flat: list[Any]) -> Iterable[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _texts(flat: list[bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in _pairs(flat)}


def _by_partition(flat: list[bytes]) -> dict[int, str]:
    return {int(partition): value.decode() for partition, value in _pairs(flat)}


# Calls of the scripts of a partition, and their replies. Pure: a `Link` runs them.


LONGEST_COMMAND = 7_000
"""The most words of a command of `commit_with`: Lua passes only slightly more."""


class PartitionCalls:
    """The calls that concern the partitions of a stream for a group."""

    def __init__(self, stream: str, group: str, library: Library = LIBRARY) -> None:
        """Name the group.

        Args:
            stream: The stream.
            group: The group; empty for calls that concern no group.
            library: The scripts. Default: `LIBRARY`.
        """
        self._stream = stream
        self._group = group
        self._library = library

    def open(self, opening: Opening, start: Start) -> ScriptCall:
        """Return the call that makes a token the only one that may commit."""
        partition, token, session = opening
        return self._call("open", partition, self._group, token, session, start.value)

    def commit(self, request: CommitRequest) -> ScriptCall:
        """Return the call that stores an offset and runs commands.

        Raises:
            ConfigError: A command has too many words, or a word that cannot be encoded in UTF-8.
        """
        keys = PartitionKeys(self._stream, request.partition)
        words = [word for command in request.commands for word in _counted(_encoded(command))]
        mark = (format_id(request.offset), request.done)
        call = self._call("commit", request.partition, *self._fence(request), *mark, *words)
        return call._replace(keys=call.keys + _keys_of(request.commands, keys.tag))

    def set_aside(self, request: SetAside) -> ScriptCall:
        """Return the call that stores dead letters."""
        words = [word for letter in request.letters for word in _letter(letter)]
        return self._call("set_aside", request.partition, *self._fence(request), *words)

    def info(self, partition: int) -> ScriptCall:
        """Return the call that reads the position in a partition."""
        return self._call("position", partition)

    def reset(self, partition: int, offset: int, done: int) -> ScriptCall:
        """Return the call that lets the group continue after an offset."""
        return self._call("reset", partition, self._group, format_id(offset), done)

    def forget(self, partition: int) -> ScriptCall:
        """Return the call that removes the group."""
        return self._call("forget", partition, self._group)

    def send_back(self, partition: int, letters: Sequence[Entry]) -> ScriptCall:
        """Return the call that adds dead letters as new records."""
        words = [word for letter in letters for word in _letter(letter)]
        return self._call("send_back", partition, len(letters), *words)

    def trim(self, partition: int, groups: Collection[str]) -> ScriptCall:
        """Return the call that removes what all groups have done."""
        keys = PartitionKeys(self._stream, partition)
        call = self._call("trim", partition, *groups)
        return call._replace(keys=call.keys + tuple(map(keys.fence, groups)))

    def add(self, partition: int, max_len: int, records: Sequence[NewRecord]) -> ScriptCall:
        """Return the call that adds records of a partition, up to the available room."""
        words = [
            word
            for each in records
            for word in _counted(fields_of(each.value, each.key, each.headers))
        ]
        return self._call("add", partition, max_len, *words)

    def _fence(self, request: CommitRequest | SetAside) -> tuple[str, int, str]:
        return self._group, request.token, request.session

    def _call(self, name: str, partition: int, *arguments: Any) -> ScriptCall:
        keys = PartitionKeys(self._stream, partition).all(self._group)
        return ScriptCall(self._library[name], keys, arguments)


def opened(reply: Any) -> Opened | Fenced:
    """Parse the reply to an open."""
    match reply:
        case [b"fenced", token]:
            return Fenced(token)
        case [b"opened", offset, done, end, added, length, first]:
            first = parse_id(first) if first else None
            return Opened(parse_id(offset), done, parse_id(end), added, length, first)
    raise AssertionError(reply)


def committed(reply: Any) -> Commit | Fenced:
    """Parse the reply to a commit."""
    return Commit(reply.decode()) if isinstance(reply, bytes) else Fenced(reply[1])


def was_set_aside(reply: Any) -> int | Fenced:
    """Parse the reply to a call that stores dead letters."""
    return reply if isinstance(reply, int) else Fenced(reply[1])


def info_of(reply: Any) -> PartitionInfo:
    """Parse the reply to a call that reads the position in a partition."""
    token, session, offset, done, end, added, length, dead, at_ms, has_deletions = reply
    return PartitionInfo(
        token=token,
        session=session.decode(),
        offset=parse_id(offset),
        done=done,
        end=parse_id(end),
        added=None if added == b"" else added,
        length=length,
        dead=dead,
        is_new=at_ms == 0,
        has_deletions=bool(has_deletions),
    )


def letter_of(item: Sequence[Any]) -> Entry:
    """Return a dead letter under its original offset in the stream."""
    fields = item[1]
    return Entry(parse_id(fields[1]), *parts_of(fields[2:]))


def refused(stream: str, partition: int, call: str, error: Exception) -> Failed:
    """Return the reply to a call that the server refused."""
    reason = str(error).partition(" script: ")[0]  # without the line of our script
    return Failed(CallRefusedError(stream, partition, call, shortened(reason)))


def is_of_command(reply: Any) -> bool:
    """Return whether the reply to a commit says that a command failed."""
    return isinstance(reply, list) and reply[0] == b"failed"


def reason_of(reply: Any) -> str:
    """Return the server's reason for the failure of the command."""
    return str(reply[2].decode("utf8", "replace"))


def refused_command(stream: str, request: CommitRequest, reply: Any) -> Failed:
    """Return the reply to a commit in which a command failed."""
    ran = int(reply[1])
    call = f"the command {quoted_value(tuple(request.commands[ran]))} of commit_with"
    error = CallRefusedError(stream, request.partition, call, shortened(reason_of(reply)))
    return Failed(error, ran)


def _encoded(command: Command) -> list[bytes]:
    try:
        return [_word(word) for word in command]
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"the command {quoted_value(tuple(command))} of commit_with has a word that UTF-8 "
            f"cannot hold ({error.reason}); give bytes"
        ) from None


def _word(word: bytes | str | int) -> bytes:
    if isinstance(word, bytes):
        return word
    return word.encode() if isinstance(word, str) else b"%d" % word  # True is 1


def _letter(letter: Entry) -> list[Any]:
    offset, value, key, headers = letter
    return [format_id(offset), *_counted(fields_of(value, key, headers))]


def _counted(words: Sequence[Any]) -> list[Any]:
    if len(words) > LONGEST_COMMAND:
        raise ConfigError(
            f"a command of commit_with, or a record, has {len(words):,} words; give at most "
            f"{LONGEST_COMMAND:,}, in several commands"
        )
    return [len(words), *words]


def _keys_of(commands: Sequence[Command], tag: str) -> tuple[str, ...]:
    """Return the words that are keys of the partition, because a script declares its keys."""
    raw = tag.encode()
    found: dict[str, None] = {}
    for command in commands:
        for word in command:
            if isinstance(word, str) and word.startswith(tag):
                found[word] = None
            elif isinstance(word, bytes) and word.startswith(raw):
                found[word.decode("utf8", "surrogateescape")] = None
    return tuple(found)


# Records as entries of Redis streams, and the entries of dead letters.
#
# The value is the field `v`, the key the field `k`, and a header `name` the field `h:name`. Every
# other field is a header under its own name, so that programs without this package can write
# records with `XADD`. An entry without `v` has an empty value. `src/entries` reads what `XREAD`
# returns.


_HEADER = b"h:"

Headers = tuple[tuple[str, bytes], ...]


def fields_of(value: bytes, key: bytes | None, headers: Headers) -> list[bytes]:
    """Return the fields of a record, alternating names and values."""
    fields = [b"v", value]
    if key is not None:
        fields += (b"k", key)
    for name, data in headers:
        fields += (_HEADER + name.encode("utf8", "surrogateescape"), data)
    return fields


def parts_of(fields: list[bytes]) -> tuple[bytes, bytes | None, Headers]:
    """Parse fields into value, key and headers."""
    value = key = None
    headers = []
    for name, data in zip(fields[::2], fields[1::2], strict=True):
        if name == b"v" and value is None:
            value = data
        elif name == b"k" and key is None:
            key = data
        else:
            header = name.removeprefix(_HEADER).decode("utf8", "surrogateescape")
            headers.append((header, data))
    return b"" if value is None else value, key, tuple(headers)
