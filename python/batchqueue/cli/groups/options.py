"""The stream and the group that a command is about."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from batchqueue.cli.groups.program import load_worker
from batchqueue.cli.groups.source import source_of
from batchqueue.cli.numbers import whole_number
from batchqueue.exceptions import ConfigError
from batchqueue.groups.backend import Administration, MemberInfo, Source
from batchqueue.groups.record import check_name


@dataclass(frozen=True)
class Target:
    """A group of a stream.

    Attributes:
        group: The name of the group.
        source: The stream.
    """

    group: str
    source: Source

    def __str__(self) -> str:
        return f"group {self.group} on {self.source.stream}"

    @contextmanager
    def administration(self) -> Iterator[Administration]:
        """Connect.

        Raises:
            ConfigError: The stream does not exist.
        """
        administration = self.source.open_administration(self.group)
        try:
            if administration.partitions() < 1:
                raise ConfigError(
                    f'stream "{self.source.stream}" does not exist: no producer and no worker has '
                    "used it; check its name and the server"
                )
            yield administration
        finally:
            administration.close()


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a group."""
    target = parser.add_argument_group(
        "the group",
        "Either --worker, or --source with --stream and --group. A URL with a password can be read "
        "by other users of the host, in the list of processes: use --worker then.",
    )
    target.add_argument(
        "--worker",
        metavar="MODULE:ATTR",
        help="a Worker of your program, or a function that returns one: its stream and group",
    )
    target.add_argument("--source", metavar="URL", help="the server: redis://HOST:PORT/DB")
    target.add_argument("--stream", metavar="NAME", help="the name of the stream")
    target.add_argument("--group", metavar="NAME", help="the name of the group")


def add_partition(parser: argparse.ArgumentParser) -> None:
    """Add the option that selects a partition."""
    parser.add_argument(
        "--partition", type=whole_number(0), metavar="P", help="this one only (default: all)"
    )


def target_of(arguments: argparse.Namespace) -> Target:
    """Return the group that the options name.

    Raises:
        ConfigError: Options are missing or contradict each other, or one of them is invalid.
        MissingPackageError: The package of the backend is missing.
    """
    named = {name: getattr(arguments, name) for name in ("source", "stream", "group")}
    given = [f"--{name}" for name, value in named.items() if value is not None]
    if arguments.worker is not None:
        if given:
            raise ConfigError(
                f"--worker and {', '.join(given)} given; give either --worker, or the others"
            )
        worker = load_worker(arguments.worker)
        return Target(worker.settings.group, worker.source)
    missing = [f"--{name}" for name, value in named.items() if value is None]
    if missing:
        raise ConfigError(
            f"{', '.join(missing)} missing; give --worker MODULE:ATTR, or --source URL --stream "
            "NAME --group NAME"
        )
    check_name("the stream", arguments.stream)
    group = check_name("the group", arguments.group)
    return Target(group, source_of(arguments.source, arguments.stream))


def partitions_of(arguments: argparse.Namespace, administration: Administration) -> Sequence[int]:
    """Return the partitions that `--partition` selects.

    Raises:
        ConfigError: The partition does not exist.
    """
    count = administration.partitions()
    if arguments.partition is None:
        return range(count)
    if arguments.partition >= count:
        raise ConfigError(
            f"--partition is {arguments.partition}; give 0 to {count - 1}, or leave it out"
        )
    return [arguments.partition]


def members_of(administration: Administration) -> dict[str, MemberInfo]:
    """Return the members whose lease is not over, by session: the others are dead."""
    members = administration.group().members
    return {session: each for session, each in members.items() if each.lease_left_ms > 0}
