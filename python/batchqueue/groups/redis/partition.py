"""Calls of the scripts of a partition, and what they reply. Pure: a `Link` runs them."""

from collections.abc import Collection, Sequence
from typing import Any

from batchqueue.exceptions import ConfigError
from batchqueue.groups.backend import CommitRequest, NewRecord, Opening, PartitionInfo, SetAside
from batchqueue.groups.errors import CallRefusedError, quoted_value, shortened
from batchqueue.groups.messages import Command, Commit, Entry, Failed, Fenced, Opened
from batchqueue.groups.offsets import format_id, parse_id
from batchqueue.groups.redis.keys import PartitionKeys
from batchqueue.groups.redis.library import LIBRARY, Library, ScriptCall
from batchqueue.groups.redis.records import fields_of, parts_of
from batchqueue.groups.start import Start

LONGEST_COMMAND = 7_000
"""The words that a command of `commit_with` may have: Lua passes not many more."""


class PartitionCalls:
    """The calls that concern the partitions of a stream for a group."""

    def __init__(self, stream: str, group: str, library: Library = LIBRARY) -> None:
        """Name the group.

        Args:
            stream: The stream.
            group: The group; empty for what concerns none.
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
            ConfigError: A command has too many words, or one that UTF-8 cannot hold.
        """
        keys = PartitionKeys(self._stream, request.partition)
        words = [word for command in request.commands for word in _counted(_encoded(command))]
        call = self._call(
            "commit",
            request.partition,
            self._group,
            request.token,
            request.session,
            format_id(request.offset),
            request.done,
            *words,
        )
        return call._replace(keys=call.keys + _keys_of(request.commands, keys.tag))

    def set_aside(self, request: SetAside) -> ScriptCall:
        """Return the call that stores dead letters."""
        words = [word for letter in request.letters for word in _letter(letter)]
        fence = (self._group, request.token, request.session)
        return self._call("set_aside", request.partition, *fence, *words)

    def info(self, partition: int) -> ScriptCall:
        """Return the call that says where a partition is."""
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
        """Return the call that adds records of a partition, as many as there is room for."""
        words = [
            word
            for each in records
            for word in _counted(fields_of(each.value, each.key, each.headers))
        ]
        return self._call("add", partition, max_len, *words)

    def _call(self, name: str, partition: int, *arguments: Any) -> ScriptCall:
        keys = PartitionKeys(self._stream, partition).all(self._group)
        return ScriptCall(self._library[name], keys, arguments)


def opened(reply: Any) -> Opened | Fenced:
    """Return what an open replied."""
    match reply:
        case [b"fenced", token]:
            return Fenced(token)
        case [b"opened", offset, done, end, added, length, first]:
            first = parse_id(first) if first else None
            return Opened(parse_id(offset), done, parse_id(end), added, length, first)
    raise AssertionError(reply)


def committed(reply: Any) -> Commit | Fenced:
    """Return what a commit replied."""
    return Commit(reply.decode()) if isinstance(reply, bytes) else Fenced(reply[1])


def was_set_aside(reply: Any) -> int | Fenced:
    """Return what a call that stores dead letters replied."""
    return reply if isinstance(reply, int) else Fenced(reply[1])


def info_of(reply: Any) -> PartitionInfo:
    """Return where a partition is."""
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
        at_ms=at_ms,
        has_deletions=bool(has_deletions),
    )


def letter_of(item: Sequence[Any]) -> Entry:
    """Return a dead letter under the offset that it had in the stream."""
    fields = item[1]
    return Entry(parse_id(fields[1]), *parts_of(fields[2:]))


def refused(stream: str, partition: int, call: str, error: Exception) -> Failed:
    """Return the reply to a call that the server refused."""
    reason = str(error).partition(" script: ")[0]  # and not which of our lines it was
    return Failed(CallRefusedError(stream, partition, call, shortened(reason)))


def is_of_command(reply: Any) -> bool:
    """Return whether a commit replied that a command failed."""
    return isinstance(reply, list) and reply[0] == b"failed"


def reason_of(reply: Any) -> str:
    """Return what the server said about the command that failed."""
    return str(reply[2].decode("utf8", "replace"))


def refused_command(stream: str, request: CommitRequest, reply: Any) -> Failed:
    """Return the reply to a commit one of whose commands failed."""
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
    """The words that are keys of the partition: a script declares its keys."""
    raw = tag.encode()
    found: dict[str, None] = {}
    for command in commands:
        for word in command:
            if isinstance(word, str) and word.startswith(tag):
                found[word] = None
            elif isinstance(word, bytes) and word.startswith(raw):
                found[word.decode("utf8", "surrogateescape")] = None
    return tuple(found)
