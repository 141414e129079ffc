"""What went wrong with PostgreSQL, as a `StoreError`: may it go away by itself, and what to do."""

import psycopg

from batchqueue.outputs.store import StoreError, StoreUnavailableError

_PASSING_CLASSES = ("08", "40")
_PASSING = {
    "53200",  # out of memory
    "53300",  # too many connections
    "55P03",  # the lock time-out
    "57014",  # a statement was cancelled, as by a statement time-out
    "57P01",  # shutting down
    "57P02",  # another process of the server crashed
    "57P03",  # starting up
}
"""States of SQL (appendix A of PostgreSQL's manual) that are over when load or an outage is over."""

_REFUSED = (
    "authentication failed",
    "no password supplied",
    "does not exist",
    "pg_hba.conf",
    "invalid integer",
)
"""Parts of the messages of a server that answered, and will answer so again; there is no state with these."""

_REMEDIES = {
    "55P03": "another writer of this sink kept it: raise lock_timeout_s, or stop that writer",
    "53300": "raise max_connections of the server, or run fewer writers",
    "53100": "make room on the server's disk",
    "25006": "this is a standby or a read-only database: connect to the primary",
    "42501": "grant this user what it needs: CREATE and USAGE on the schema, TEMP on the database, and its tables",
    "22003": "PostgreSQL keeps ints of 64 bits: measure in a larger unit",
    "54000": "sink, metric and entity may have 2,600 bytes together: shorten them",
    "22021": "check the metrics: text may not hold NUL, nor what the encoding of the database lacks",
}
"""What to do, by state of SQL."""

_DOWN = "the server is down, restarting, out of reach or out of connections: try again later"


def store_error(store: str, error: Exception, *, committing: bool = False) -> StoreError:
    """Tell what went wrong, without the password.

    Args:
        store: The store, for the message.
        error: From psycopg, or from the conversion of a value.
        committing: Whether the commit was sent, so that nobody can tell whether it came to pass.
    """
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    reason = " ".join((primary or str(error)).split())
    passing, remedy = _judge(error, reason)
    if passing and committing:
        remedy += (
            "; this commit may have been applied: see what the store has before you write it again"
        )
    kind = StoreUnavailableError if passing else StoreError
    return kind(f"cannot use the store {store}: {reason}; {remedy}")


def _judge(error: Exception, reason: str) -> tuple[bool, str]:
    if not isinstance(error, psycopg.Error):
        return False, "check the metrics: ints have up to 64 bits, and text is valid Unicode"
    state = error.sqlstate
    if state is None and isinstance(error, psycopg.OperationalError):
        # No connection: none was made, or it was lost.
        if any(part in reason for part in _REFUSED):
            return False, "check host, database, user and password"
        return True, _DOWN
    if state is None:
        return False, "check the metrics: values are int, float, str or None, and text has no NUL"
    passing = state in _PASSING or state.startswith(_PASSING_CLASSES)
    return passing, _REMEDIES.get(
        state, _DOWN if passing else "check the server, its log, and what this user may do"
    )
