"""Turns errors of PostgreSQL into store errors: temporary or not, and with a remedy."""

import psycopg

from batchqueue.outputs.store import StoreError, StoreUnavailableError

_TEMPORARY_CLASSES = ("08", "40")
_TEMPORARY = {
    "53200",  # out of memory
    "53300",  # too many connections
    "55P03",  # the lock timeout
    "57014",  # a statement was cancelled, e.g. by a statement timeout
    "57P01",  # shutting down
    "57P02",  # another process of the server crashed
    "57P03",  # starting up
}
"""SQL states (appendix A of PostgreSQL's manual) that end with high load or an outage."""

_REFUSED = (
    "authentication failed",
    "no password supplied",
    "does not exist",
    "pg_hba.conf",
    "invalid integer",
)
"""Parts of server messages that a retry would repeat; such errors have no SQL state."""

_REMEDIES = {
    "55P03": "another writer of this sink kept it: raise lock_timeout_s, or stop that writer",
    "53300": "raise max_connections of the server, or run fewer writers",
    "53100": "make room on the server's disk",
    "25006": "this is a standby or a read-only database: connect to the primary",
    "42501": "grant this user what it needs: CREATE and USAGE on the schema, TEMP on the database, "
    "and its tables",
    "22003": "PostgreSQL keeps ints of 64 bits: measure in a larger unit",
    "54000": "sink, metric and entity may have 2,600 bytes together: shorten them",
    "22021": "check the metrics: text may not hold NUL, or characters that the encoding of the "
    "database lacks",
}
"""The remedy, by SQL state."""

_RIGHTS_OF_READERS = (
    "grant this user USAGE on the schema and SELECT on its tables; ALTER DEFAULT PRIVILEGES does "
    "so for those that a writer will create"
)

_DOWN = "the server is down, restarting, out of reach or out of connections: try again later"


def store_error(
    store: str, error: Exception, *, committing: bool = False, reading: bool = False
) -> StoreError:
    """Return the store error for an error, without the password.

    Args:
        store: The store, for the message.
        error: From psycopg, or from the conversion of a value.
        committing: Whether the commit was sent, so that its outcome is unknown; False by default.
        reading: Whether nothing was to be written; False by default.
    """
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    reason = " ".join((primary or str(error)).split())
    temporary, remedy = _judge(error, reason)
    if reading and getattr(error, "sqlstate", None) == "42501":
        remedy = _RIGHTS_OF_READERS
    if temporary and committing:
        remedy += (
            "; this commit may have been applied: see what the store has before you write it again"
        )
    kind = StoreUnavailableError if temporary else StoreError
    return kind(f"cannot use the store {store}: {reason}; {remedy}")


def _judge(error: Exception, reason: str) -> tuple[bool, str]:
    if not isinstance(error, psycopg.Error):
        return False, "check the metrics: ints have up to 64 bits, and text is valid Unicode"
    state = error.sqlstate
    if state is None and isinstance(error, psycopg.OperationalError):
        # The connection failed or was lost.
        if any(part in reason for part in _REFUSED):
            return False, "check host, database, user and password"
        return True, _DOWN
    if state is None:
        return False, "check the metrics: values are int, float, str or None, and text has no NUL"
    temporary = state in _TEMPORARY or state.startswith(_TEMPORARY_CLASSES)
    return temporary, _REMEDIES.get(
        state, _DOWN if temporary else "check the server, its log, and what this user may do"
    )
