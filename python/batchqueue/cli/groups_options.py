"""The stream and the group that a command is about."""

import argparse
import inspect
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from batchqueue.base.checks import require
from batchqueue.base.words import a_type
from batchqueue.cli.command import whole_number
from batchqueue.cli.groups_kafka import FORM, topic_of
from batchqueue.exceptions import BatchQueueError, ConfigError
from batchqueue.groups.backend import Administration, MemberInfo, StreamSource
from batchqueue.groups.record import check_name
from batchqueue.groups.worker import Worker


@dataclass(frozen=True)
class Target:
    """A group of a stream.

    Attributes:
        group: The name of the group.
        source: The stream.
    """

    group: str
    source: StreamSource

    def __str__(self) -> str:
        return f"group {self.group} on {self.source.stream}"

    @contextmanager
    def administration(self) -> Iterator[Administration]:
        """Connect to the group, checking that its stream exists.

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
        "by other users of the host, in the list of processes: use --worker then, or on Kafka "
        "--command-config.",
    )
    target.add_argument(
        "--worker",
        metavar="MODULE:ATTR",
        help="a Worker of your program, or a function that returns one: its stream and group",
    )
    target.add_argument(
        "--source", metavar="URL", help=f"the server: redis://HOST:PORT/DB, or {FORM}"
    )
    target.add_argument(
        "--command-config",
        metavar="FILE",
        help="with kafka://, settings of librdkafka, such as sasl.password: lines name=value",
    )
    target.add_argument("--stream", metavar="NAME", help="the name of the stream or topic")
    target.add_argument("--group", metavar="NAME", help="the name of the group")


def add_partition(parser: argparse.ArgumentParser) -> None:
    """Add the option that selects a partition."""
    parser.add_argument(
        "--partition", type=whole_number(0), metavar="P", help="this one only (default: all)"
    )


def target_of(arguments: argparse.Namespace) -> Target:
    """Return the group that the options specify.

    Raises:
        ConfigError: Options are missing or contradictory, or one of them is invalid.
        MissingPackageError: The package of the backend is missing.
    """
    named = {name: getattr(arguments, name) for name in ("source", "stream", "group")}
    given = [f"--{name}" for name, value in named.items() if value is not None]
    if arguments.worker is not None:
        if arguments.command_config is not None:
            given.append("--command-config")
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
    source = source_of(arguments.source, arguments.stream, arguments.command_config)
    return Target(group, source)


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
    """Return the members whose lease is not over, by session."""
    members = administration.group().members
    return {session: each for session, each in members.items() if each.lease_left_ms > 0}


_REDIS_SCHEMES = ("redis", "rediss", "unix")


def source_of(url: str, stream: str, command_config: str | None = None) -> "StreamSource":
    """Return a stream of a server.

    Args:
        url: The server: `redis://HOST:PORT/DB`, `rediss://` or `unix://`, or
            `kafka://HOST:PORT,HOST:PORT`.
        stream: The name of the stream.
        command_config: The path of a file with settings for Kafka. Default: None, no file.

    Raises:
        ConfigError: The URL or the file is invalid. The message omits the URL, because it may
            contain a password.
        MissingPackageError: The package of the backend is missing.
    """
    scheme = url.partition(":")[0].lower()
    if scheme == "kafka" and "://" in url:
        return topic_of(url, stream, command_config)
    if scheme not in _REDIS_SCHEMES:
        is_url = "://" in url and scheme.isalnum()
        given = f"begins with {scheme}://" if is_url else "is not a URL"
        raise ConfigError(
            f"--source {given}; give redis://HOST:PORT/DB, rediss:// or unix://, or {FORM}"
        )
    if command_config is not None:
        raise ConfigError(
            "--command-config is for kafka:// only; leave it out, because the URL of a Redis "
            "server has its settings"
        )
    require("redis", "--source redis://", "redis")
    from batchqueue.groups.redis import RedisStreams

    return RedisStreams(url, stream)


_POLL_S = 0.2


def wait_until(condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
    """Check a condition until it holds, and return whether it does.

    Args:
        condition: Called five times per second.
        timeout_s: The longest wait. Default: None, no limit.
    """
    end = None if timeout_s is None else time.monotonic() + timeout_s
    while not condition():
        if end is not None and time.monotonic() >= end:
            return False
        time.sleep(_POLL_S)
    return True


HOW = "write MODULE:ATTR, for instance billing:worker for the variable `worker` of billing.py"


def load_worker(name: str) -> Worker:
    """Import the worker that a name refers to. The current directory is on the import path.

    Args:
        name: `MODULE:ATTR`, where the attribute, which may have dots, is a `Worker`, or a function
            without arguments that returns one.

    Raises:
        ConfigError: There is no such worker; the message has the attempt and the correct form.
    """
    module_name, colon, attribute = name.partition(":")
    if not (colon and module_name and attribute):
        raise ConfigError(f"{name!r} given; {HOW}")
    if module_name.endswith(".py") or "/" in module_name:
        raise ConfigError(
            f"{name!r} given, which names a file; {HOW}, from the directory of the file"
        )
    found: Any = _imported(name, module_name)
    module = found
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{name}: {_has_no(module, attribute)}; {HOW}")
        found = getattr(found, part)
    return found if isinstance(found, Worker) else _made(name, found)


def _imported(name: str, module_name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(module_name)
    except BatchQueueError:
        raise  # a setting of the worker is invalid: the message names it
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"{name}: no module {error.name!r}, neither in {here} nor among the installed "
                f"packages; {HOW}"
            ) from error
        raise ConfigError(f"{name}: {_failed(f'importing {module_name}', error)}") from error
    except Exception as error:
        raise ConfigError(f"{name}: {_failed(f'importing {module_name}', error)}") from error


def _made(name: str, function: Any) -> Worker:
    if not callable(function):
        raise ConfigError(
            f"{name} is {a_type(function)}; name a Worker, or a function without "
            "arguments that returns one"
        )
    _check_takes_nothing(name, function)
    try:
        made = function()
    except BatchQueueError:
        raise
    except Exception as error:
        raise ConfigError(f"{name}: {_failed('the call', error)}") from error
    if not isinstance(made, Worker):
        if inspect.iscoroutine(made):
            made.close()
        raise ConfigError(f"{name}() returned {a_type(made)}; let it return a Worker")
    return made


def _check_takes_nothing(name: str, function: Any) -> None:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ConfigError(
            f"{name} cannot be called without arguments ({error}); name a Worker, or a function "
            "without arguments that returns one"
        ) from error
    except ValueError:
        pass  # built-in functions may have no signature


def _has_no(module: ModuleType, attribute: str) -> str:
    place = f"{module.__name__} ({getattr(module, '__file__', None) or 'built in'})"
    workers = sorted(key for key, value in vars(module).items() if isinstance(value, Worker))
    there = f"its workers are: {', '.join(workers)}" if workers else "it has no Worker"
    return f"{place} has no {attribute!r}, {there}"


def _failed(what: str, error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    at = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{what} raised {type(error).__name__}: {error}{at}"
