"""Turns errors of PostgreSQL into store errors: temporary or not, and with a remedy."""

import psycopg

from batchqueue.outputs.store import StoreError, StoreUnavailableError

_DOWN = "the server is down, restarting, out of reach or out of connections: try again later"

_AGAIN = "it was rolled back beside others: try again"

_CHECK = "check the server, its log, and what this user may do"

_TEXT = (
    "check the metrics: text may not hold NUL, or characters that the encoding of the "
    "database lacks"
)

_STATES: dict[str, tuple[bool, str]] = {
    # Connections. Poolers also report their own limits so.
    "08": (True, _DOWN),
    # States of transactions. Most of them say that a statement is in the wrong place.
    "25006": (False, "this is a standby or a read-only database: connect to the primary"),
    "25P03": (
        True,
        "the server ends connections that are idle in a transaction: raise its "
        "idle_in_transaction_session_timeout for this user if that repeats",
    ),
    "25P04": (
        True,
        "the server ends transactions that take so long: raise its transaction_timeout for this "
        "user if that repeats, or write smaller epochs",
    ),
    # Rolled back because of others.
    "40": (True, _AGAIN),
    "40002": (False, "a constraint of the table refuses the rows: check what was added to it"),
    # Resources. What is configured stays as it is.
    "53": (True, _DOWN),
    "53100": (False, "make room on the server's disk"),
    "53300": (True, "raise max_connections of the server, or run fewer writers"),
    "53400": (
        False,
        "raise the limit of the server that the message names, or write smaller epochs",
    ),
    # Prerequisites. Only the lock timeout is about other writers.
    "55P03": (
        True,
        "another writer of this sink kept it: raise lock_timeout_s, or stop that writer",
    ),
    # Operators, who cancel statements, end connections and restart servers.
    "57": (True, _DOWN),
    "57014": (
        True,
        "a statement was cancelled, by an operator or by the server's statement_timeout: raise "
        "that for this user if it repeats",
    ),
    "57P04": (False, "the database was dropped: create it, or restore it from a copy"),
    "57P05": (
        True,
        "the server ends idle connections: raise its idle_session_timeout for this user if that "
        "repeats",
    ),
    # Disks and files of the server, and what it found damaged.
    "58": (False, "check the server's disk and its log"),
    "72000": (True, "the server dropped what a long read needs: read again"),
    "XX001": (False, "the server's files are damaged: restore the database from a copy"),
    "XX002": (False, "an index of the server is damaged: REINDEX the table that the message names"),
    # What a retry would repeat.
    "22003": (False, "PostgreSQL keeps ints of 64 bits: measure in a larger unit"),
    "22021": (False, _TEXT),
    "22P05": (False, _TEXT),
    "42501": (
        False,
        "grant this user what it needs: CREATE and USAGE on the schema, TEMP on the database, "
        "and its tables",
    ),
    "54000": (False, "sink, metric and entity may have 2,600 bytes together: shorten them"),
}
"""By SQL state, or by its class: whether the cause may pass, and the remedy.

What is in appendix A of PostgreSQL's manual and not here, such as most of the classes 25, 55 and
XX, is an error that a retry would repeat.
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
"""Parts of server messages that a retry would repeat; such errors have no SQL state."""

_RIGHTS_OF_READERS = (
    "grant this user USAGE on the schema and SELECT on its tables; ALTER DEFAULT PRIVILEGES does "
    "so for those that a writer will create"
)


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
    return _STATES.get(state) or _STATES.get(state[:2], (False, _CHECK))
