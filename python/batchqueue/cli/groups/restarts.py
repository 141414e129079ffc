"""`Restarts`: how long to wait before a process that died is started again."""

FIRST_S = 1.0
"""Before the first restart."""

LONGEST_S = 30.0
"""Each wait is twice the one before, up to this."""

STEADY_S = 60.0
"""A process that ran for this long is sound: the next wait is the first again."""


class Restarts:
    """The waits of a process.

    Example:
        >>> restarts = Restarts()
        >>> [restarts.next(ran_s=0.1) for _ in range(7)]
        [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
        >>> restarts.next(ran_s=100)
        1.0
    """

    def __init__(self) -> None:
        self._next_s = FIRST_S

    def next(self, ran_s: float) -> float:
        """Return the seconds to wait.

        Args:
            ran_s: The seconds from the last start to the death.
        """
        wait_s = FIRST_S if ran_s >= STEADY_S else self._next_s
        self._next_s = min(2 * wait_s, LONGEST_S)
        return wait_s
