"""How many partitions a stream gets, and which names streams and groups may have."""

from batchqueue._words import a_type
from batchqueue.exceptions import ConfigError

# A Redis cluster has as many hash slots; partitions beyond that would share slots.
_MAX_PARTITIONS = 16_384

# Braces delimit the hash tag of a Redis key, and the bar separates stream and group inside it.
_RESERVED = "{}|"


def partition_count(partition_count: int | None = None, max_workers: int = 1) -> int:
    """Return the number of partitions of a new stream.

    The number of workers that run now does not matter: each worker up to `max_workers` gets at
    least one partition, without a change of the stream.

    Args:
        partition_count: The number of your choice, 1 to 16,384. Default: None, it follows from
            `max_workers`.
        max_workers: The most workers that will share the stream, at most 16,384. Up to 1 means a
            single worker, and one partition. Default: 1.

    Returns:
        `partition_count` if given, else 1 for a single worker, else `max_workers`.

    Raises:
        ConfigError: A number is not an int, or out of range.

    Example:
        >>> partition_count(max_workers=8), partition_count(64, max_workers=8)
        (8, 64)
    """
    _check_int("max_workers", max_workers, "or partition_count")
    if partition_count is None:
        return max(1, max_workers)
    _check_int("partition_count", partition_count, "or leave it out for one per worker")
    if partition_count < 1:
        raise ConfigError(
            f"partition_count is {partition_count}; give 1 to {_MAX_PARTITIONS:_} partitions, or "
            "leave it out for one per worker"
        )
    return partition_count


def group_id(job: str, stage: str) -> str:
    """Return the name of the group that runs a stage of a job: `job`, an underscore, `stage`.

    Two pairs give the same name if only the place of an underscore differs: ("a_b", "c") and
    ("a", "b_c"). Workers of both would share one group.

    Args:
        job: The job's name.
        stage: The stage's name.

    Raises:
        ConfigError: `check_name` rejects one of them.

    Example:
        >>> group_id("billing", "store")
        'billing_store'
    """
    return f"{check_name('the job', job)}_{check_name('the stage', stage)}"


def check_name(owner: str, name: object) -> str:
    """Return the name of a stream, a group or a worker if it can be part of a key.

    Args:
        owner: What bears the name, for the message, for instance "the stream".
        name: Must be a str of printable characters, at least one, without spaces, braces and bars.

    Raises:
        ConfigError: It is not.
    """
    if not isinstance(name, str):
        raise ConfigError(f"{owner}'s name is {name!r}, {a_type(name)}; give a str")
    if not name:
        raise ConfigError(f"{owner}'s name is empty; give at least one printable character")
    for character in name:
        if not character.isprintable() or character == " " or character in _RESERVED:
            raise ConfigError(
                f"{owner}'s name is {name!r} with {character!r}; give printable characters without "
                "spaces, braces and bars, for instance a hyphen or a dot instead"
            )
    return name


def _check_int(setting: str, value: object, otherwise: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(
            f"{setting} is {value!r}, {a_type(value)}; give an int up to "
            f"{_MAX_PARTITIONS:_}, {otherwise}"
        )
    if value > _MAX_PARTITIONS:
        raise ConfigError(f"{setting} is {value}; give at most {_MAX_PARTITIONS:_}, {otherwise}")
