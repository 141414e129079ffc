"""Points of a transaction of `PostgresRows`, at which a test has something happen."""

POINTS = ("begin", "copy", "write", "end")
"""Before its first statement, before COPY, between two rows, before its last statement."""


class AtPoint:
    """Calls a function once, at a point of the next transaction of an exporter.

    Attributes:
        is_reached: Whether it has been called.
    """

    def __init__(self, exporter, point, function):
        self.is_reached = False
        self._function, self._copy, self._point = function, exporter._copy, point
        exporter._copy = self._copy_with_points
        self._reach("begin")

    def _reach(self, point):
        if point == self._point and not self.is_reached:
            self._function()
            self.is_reached = True

    def _copy_with_points(self, connection, table, columns, rows):
        self._reach("copy")
        self._copy(connection, table, columns, self._with_points(rows))
        self._reach("end")

    def _with_points(self, rows):
        for number, row in enumerate(rows):
            if number == min(5, len(rows) - 1):
                self._reach("write")
            yield row
