"""Conversion of catalog, file and Arrow errors into store errors, with a remedy."""

from collections.abc import Iterator
from contextlib import contextmanager

from batchqueue.outputs.store import StoreError, StoreUnavailableError

_LOST = "another writer has changed the table meanwhile: start another transaction"
_DOWN = "the catalog or the file system is busy, down or out of reach: try again later"
_UNKNOWN = "; this commit may have been applied: see what the store has before you write it again"
_REFUSED = "check the properties of the catalog, and what this user may do"
_METRICS = "check the metrics: values fit their columns, and text is valid Unicode"
_FILES = (
    "check the files of the table, which other programs may have removed, and what this user may "
    "do; a full disk needs room"
)

_CATALOGS = (
    "pyiceberg",
    "requests",
    "sqlalchemy",
    "botocore",
    "thrift",
    "hive_metastore",
    "google",
    "pydantic_core",
)
"""Packages whose errors come from a catalog."""

_TEMPORARY = (
    *("CommitStateUnknownException", "ServiceUnavailableError", "ServerError"),
    *("TooManyRequestsError", "WaitingForLockException"),
    *("OperationalError", "InterfaceError", "TimeoutError"),  # SQLAlchemy
    *("ConnectionError", "Timeout", "TTransportException", "ServiceUnavailable"),
    *("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ThrottlingException"),
)
"""Error classes of these packages, with their subclasses, that pass once the catalog is back."""

_OF_STORAGE = ("NETWORK_CONNECTION", "SLOW_DOWN", "SERVICE_UNAVAILABLE", "curlCode", "timed out")
"""Parts of Arrow's messages about errors of object storage that a retry may not repeat."""


@contextmanager
def iceberg_errors(store: str, *, committing: bool = False) -> Iterator[None]:
    """Turn errors of a block into store errors that name the store.

    Args:
        store: The name of the store.
        committing: Whether the block commits, so that a lost connection leaves its outcome unknown;
            False by default.
    """
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        kind, remedy = _judge(error)
        if kind is None:
            raise
        if committing and remedy == _DOWN:
            remedy += _UNKNOWN
        raise kind(f"cannot use the store {store}: {error}; {remedy}") from error


def _judge(error: Exception) -> tuple[type[StoreError] | None, str]:
    import pyarrow as pa
    from pyiceberg import exceptions

    if isinstance(error, exceptions.CommitFailedException | exceptions.TableAlreadyExistsError):
        return StoreUnavailableError, _LOST
    if isinstance(error, ConnectionError | TimeoutError) or _is_temporary(error):
        return StoreUnavailableError, _DOWN
    if isinstance(error, OverflowError | UnicodeError):
        return StoreError, _METRICS
    if isinstance(error, OSError | pa.ArrowException):
        return StoreError, _FILES
    return (StoreError, _REFUSED) if _package(type(error)) in _CATALOGS else (None, "")


def _is_temporary(error: Exception) -> bool:
    if isinstance(error, OSError) and any(part in str(error) for part in _OF_STORAGE):
        return True
    return any(
        kind.__name__ in _TEMPORARY and _package(kind) in _CATALOGS for kind in type(error).__mro__
    )


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]
