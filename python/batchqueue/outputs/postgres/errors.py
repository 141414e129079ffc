"""Conversion of PostgreSQL errors into store errors: temporary or lasting, with a remedy."""

import psycopg

from batchqueue.outputs.store import StoreError, StoreUnavailableError

_DOWN = "the server is down, restarting, out of reach or out of connections: try again later"

_AGAIN = "it was rolled back beside others: try again"

_CHECK = "check the server, its log, and what this user may do"

_TEXT = (
    "check the metrics: text may not hold NUL, or characters that the encoding of the "
    "database lacks"
)

_TEMPORARY = {
    # Connections. Poolers report their own limits in this class, too.
    "08": _DOWN,
    # States of transactions. Most of them mean that a statement is misplaced.
    "25P03": "the server ends connections that are idle in a transaction: raise its "
    "idle_in_transaction_session_timeout for this user if that repeats",
    "25P04": "the server ends transactions that take so long: raise its transaction_timeout for "
    "this user if that repeats, or write smaller epochs",
    # Rolled back because of other transactions.
    "40": _AGAIN,
    # Resources.
    "53": _DOWN,
    "53300": "raise max_connections of the server, or run fewer writers",
    # Prerequisites. Only the lock timeout is about other writers.
    "55P03": "another writer of this sink kept it: raise lock_timeout_s, or stop that writer",
    # Operators, who cancel statements, end connections and restart servers.
    "57": _DOWN,
    "57014": "a statement was cancelled, by an operator or by the server's statement_timeout: "
    "raise that for this user if it repeats",
    "57P05": "the server ends idle connections: raise its idle_session_timeout for this user if "
    "that repeats",
    "72000": "the server dropped what a long read needs: read again",
}
"""The remedies for causes that may pass, by SQL state or by its class."""

_LASTING = {
    "25006": "this is a standby or a read-only database: connect to the primary",
    "40002": "a constraint of the table refuses the rows: check what was added to it",
    # Limits that stay as they are configured.
    "53100": "make room on the server's disk",
    "53400": "raise the limit of the server that the message names, or write smaller epochs",
    "57P04": "the database was dropped: create it, or restore it from a copy",
    # The server's disks and files, and damage that it found.
    "58": "check the server's disk and its log",
    "XX001": "the server's files are damaged: restore the database from a copy",
    "XX002": "an index of the server is damaged: REINDEX the table that the message names",
    # Errors that a retry would repeat.
    "22003": "PostgreSQL keeps ints of 64 bits: measure in a larger unit",
    "22021": _TEXT,
    "22P05": _TEXT,
    "42501": "grant this user what it needs: CREATE and USAGE on the schema, TEMP on the database, "
    "and its tables",
    "54000": "sink, metric and entity may have 2,600 bytes together: shorten them",
}
"""The remedies for errors that a retry would repeat.

States in appendix A of PostgreSQL's manual that are in neither table are lasting, too, such as most
of the classes 25, 55 and XX.
"""

_REFUSED = (
    "authentication failed",
    "no password supplied",
    "does not exist",
    "pg_hba.conf",
    "not permitted to log in",
    "permission denied",
    "invalid integer",
)
"""Parts of the messages of errors that a retry would repeat, and that have no SQL state."""

_RIGHTS_OF_READERS = (
    "grant this user USAGE on the schema and SELECT on its tables; ALTER DEFAULT PRIVILEGES does "
    "so for those that a writer will create"
)


def store_error(
    store: str, error: Exception, *, committing: bool = False, reading: bool = False
) -> StoreError:
    """Return the store error for an error, with a message that omits the password.

    Args:
        store: The store, for the message.
        error: From psycopg, or from the conversion of a value.
        committing: Whether the commit was sent, so that its outcome is unknown; False by default.
        reading: Whether the connection only reads; False by default.
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
    for code in (state, state[:2]):
        for is_temporary, remedies in ((True, _TEMPORARY), (False, _LASTING)):
            if code in remedies:
                return is_temporary, remedies[code]
    return False, _CHECK
