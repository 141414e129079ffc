"""`RedisGroup`: the scripts of a group, with the methods of `memory.GroupScripts`."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from batchqueue.exceptions import ConfigError
from batchqueue.groups.backend import GroupInfo, MemberInfo
from batchqueue.groups.messages import (
    Beaten,
    Event,
    EventKind,
    Incarnation,
    Joined,
    Member,
    Refusal,
    Replaced,
    Synced,
    Ticket,
)
from batchqueue.groups.redis.client import Link
from batchqueue.groups.redis.keys import control_keys
from batchqueue.groups.redis.library import LIBRARY, Library, ScriptCall


class RedisGroup:
    """The scripts of a group on Redis. Each method is one call; its arguments are in `memory`."""

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
        """Return the time of the server in microseconds: the incarnation of a process.

        It is that of the node that has the group, as join compares it with its clock.
        """
        return int(self._call("time"))

    def join(
        self, session: str, lease_ms: int, member: Member, partitions: int, *, asked_us: int
    ) -> Joined | Replaced | Refusal:
        """Make a session a member. It takes the name from an older session, which is removed.

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
        """Renew the lease of a member, and make it plan if that is due."""
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
        """Compare what a session holds with what it owns and is to own."""
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
        """Raise the number of partitions, and return the number from now on."""
        return int(self._call("resize", partitions))

    def leaving(self, session: str) -> int | Refusal:
        """Begin to leave: all partitions are revoked. Return how many the session still owns."""
        return _number(self._call("leaving", session))

    def leave(self, session: str) -> int:
        """Remove a session, and return how many partitions it still owned."""
        return int(self._call("leave", session))

    def info(self) -> GroupInfo:
        """Return who is there, and who owns what."""
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
    # `leaving` comes first, because a script changes it in place. Numbers are texts, because Lua
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
