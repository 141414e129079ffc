"""Conditions that rows of a table meet, as pyiceberg's expressions."""

import functools
from collections.abc import Collection, Iterable
from typing import Any

from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    In,
    LessThan,
)

# Their constructors take positions, which those of pydantic's models do not, for type checkers.
_equal_to: Any = EqualTo
_in: Any = In
_at_least: Any = GreaterThanOrEqual
_below: Any = LessThan
_and: Any = And

_FIRST, _END = -(2**63), 2**63


def equal(column: str, value: Any) -> BooleanExpression:
    """Return the condition that a column has a value."""
    return _equal_to(column, value)  # type: ignore[no-any-return]


def one_of(column: str, values: Collection[Any]) -> BooleanExpression:
    """Return the condition that a column has one of some values."""
    return _in(column, set(values))  # type: ignore[no-any-return]


def within(buckets: range) -> list[BooleanExpression]:
    """Return the conditions that a time bucket is in a range, which may reach beyond 64 bits."""
    found = []
    if buckets.start > _FIRST:
        found.append(_at_least("time_bucket", buckets.start))
    if buckets.stop < _END:
        found.append(_below("time_bucket", buckets.stop))
    return found


def all_of(conditions: Iterable[BooleanExpression]) -> BooleanExpression:
    """Return the condition that all of these are met."""
    return functools.reduce(_and, conditions, AlwaysTrue())
