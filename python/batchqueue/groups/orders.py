"""Where a worker and its partitions are, and what the control side orders its driver to do."""

import enum
from dataclasses import dataclass


class Phase(enum.Enum):
    """Where a partition is between its grant and its end under this token."""

    OPENING = "opening"
    RUNNING = "running"
    DRAINING = "draining"
    RELEASED = "released"
    LOST = "lost"


class Seat(enum.Enum):
    """Where a worker is between its start and its end."""

    JOINING = "joining"
    MEMBER = "member"
    LEFT = "left"
    REPLACED = "replaced"


class Loss(enum.Enum):
    """Why a partition was lost."""

    LEASE_OVER = "lease over"
    UNKNOWN = "session removed"
    OTHER_OWNER = "other owner"
    FENCED = "fenced"
    GIVEN_UP = "given up"


class OrderKind(enum.Enum):
    """What the driver is to do with a partition."""

    OPEN = "open"
    """Open it, until that succeeds or is refused, and report `opened` or `fenced`."""

    DRAIN = "drain"
    """Start nothing new, commit what is done, and report `drained` when that is acknowledged."""

    DROP = "drop"
    """Forget it: start nothing, commit nothing, ignore what still runs."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the driver is to do with a partition.

    Attributes:
        kind: What to do.
        partition: The partition.
        token: The token of the grant.
        session: The session that it was granted to.
        loss: Why it was lost, for `DROP`.
    """

    kind: OrderKind
    partition: int
    token: int
    session: str
    loss: Loss | None = None


@dataclass(slots=True)
class Holding:
    """A partition under one token.

    Attributes:
        partition: The partition.
        token: The token of the grant.
        phase: Where it is.
    """

    partition: int
    token: int
    phase: Phase
