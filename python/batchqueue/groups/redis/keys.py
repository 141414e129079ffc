"""Names of keys. On a cluster each tag in braces is a slot: what belongs together is in one."""

from dataclasses import dataclass

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
    """Return the keys of what is stored of a group, in the order of `scripts/control.lua`."""
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
        """What all keys of the partition begin with."""
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
