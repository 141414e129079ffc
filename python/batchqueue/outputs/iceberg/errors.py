"""Turns errors of catalogs, files and Arrow into store errors: temporary or not, with a remedy."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from batchqueue.outputs.store import StoreError, StoreUnavailableError

_LOST = "another writer has changed the table meanwhile: start another transaction"
_DOWN = "the catalog or the file system is busy, down or out of reach: try again later"
_UNKNOWN = (
    f"{_DOWN}; this commit may have been applied: see what the store has before you write it again"
)
_REFUSED = "check the properties of the catalog, and what this user may do"
_METRICS = "check the metrics: values fit their columns, and text is valid Unicode"
_FILES = "check the files of the table and what this user may do; a full disk needs room"


@contextmanager
def iceberg_errors(store: str) -> Iterator[None]:
    """Turn the errors of a block into those of the store with this name."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        kind, remedy = _judge(error)
        if kind is None:
            raise
        raise kind(f"cannot use the store {store}: {error}; {remedy}") from error


def _judge(error: Exception) -> tuple[type[StoreError] | None, str]:
    import pyarrow as pa
    from pyiceberg import exceptions

    judged: tuple[tuple[tuple[type[Exception], ...], type[StoreError], str], ...] = (
        (
            (exceptions.CommitFailedException, exceptions.TableAlreadyExistsError),
            StoreUnavailableError,
            _LOST,
        ),
        ((exceptions.CommitStateUnknownException,), StoreUnavailableError, _UNKNOWN),
        (
            (
                exceptions.ServiceUnavailableError,
                exceptions.ServerError,
                exceptions.TooManyRequestsError,
                exceptions.WaitingForLockException,
                *_connections(),
            ),
            StoreUnavailableError,
            _DOWN,
        ),
        ((OverflowError, UnicodeError), StoreError, _METRICS),
        ((OSError, pa.ArrowException), StoreError, _FILES),
    )
    for kinds, kind, remedy in judged:
        if isinstance(error, kinds):
            return kind, remedy
    is_of_a_catalog = type(error).__module__.partition(".")[0] in _CATALOGS
    return (StoreError, _REFUSED) if is_of_a_catalog else (None, "")


_CATALOGS = ("pyiceberg", "requests", "sqlalchemy", "botocore", "thrift", "google")


def _connections() -> list[type[Exception]]:
    """Return the errors of connections of the packages that an open catalog has imported."""
    found: list[type[Exception]] = [ConnectionError, TimeoutError]
    for module, names in (
        ("sqlalchemy.exc", ("OperationalError", "TimeoutError")),
        ("requests.exceptions", ("ConnectionError", "Timeout")),
    ):
        if loaded := sys.modules.get(module):
            found += [getattr(loaded, name) for name in names]
    return found
