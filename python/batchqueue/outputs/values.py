"""The types of value columns, and the values that fit them, the same in every store."""

from collections.abc import Callable, Sequence
from decimal import Context, Decimal, InvalidOperation
from typing import Any

DECIMAL_DIGITS, DECIMAL_PLACES = 38, 18
"""Of a Decimal in a store: all digits, and those after the point."""

_WIDE = Context(prec=1_000)
_MOST = Decimal(10) ** (DECIMAL_DIGITS - DECIMAL_PLACES)


def plain(value: Decimal) -> Decimal:
    """Return an equal decimal without zeros at its end and without an exponent."""
    short = value.normalize(_WIDE)
    if not short:
        return Decimal(0)
    is_whole = short == short.to_integral_value()
    return short.quantize(Decimal(1), context=_WIDE) if is_whole else short


def plain_in(values: Sequence[Any]) -> Sequence[Any]:
    """Return values with each decimal among them in its plain form."""
    if not any(isinstance(value, Decimal) for value in values):
        return values
    return [plain(value) if isinstance(value, Decimal) else value for value in values]


def _fitting_int(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    if not -(2**63) <= value < 2**63:
        raise OverflowError(f"{value} has more than 64 bits")
    return int(value)


def _fitting_float(value: Any) -> float:
    if isinstance(value, float):
        return float(value)
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not a number")
    if int(float(value)) != value:
        raise OverflowError(f"{value} is an int of more than 53 bits, which a float cannot hold")
    return float(value)


def _fitting_str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a str")
    return str.__str__(value)  # of a text that is an Enum, str() would be its name


def _fitting_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is not a bool")
    return value


def _fitting_decimal(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise TypeError(f"{value!r} is not a Decimal or an int")
    if isinstance(value, Decimal) and not value.is_finite():
        raise OverflowError(f"{value} is not finite")
    exact = Decimal(value)
    try:
        fits = exact.copy_abs() < _MOST and exact == exact.quantize(
            Decimal(1).scaleb(-DECIMAL_PLACES), context=_WIDE
        )
    except InvalidOperation:  # more digits than that has
        fits = False
    if not fits:
        raise OverflowError(
            f"{value} has more than {DECIMAL_DIGITS - DECIMAL_PLACES} digits before the point or "
            f"{DECIMAL_PLACES} after it"
        )
    return plain(exact)


FITTING: dict[type, Callable[[Any], Any]] = {
    int: _fitting_int,
    float: _fitting_float,
    str: _fitting_str,
    bool: _fitting_bool,
    Decimal: _fitting_decimal,
}
"""By the type of a column, what returns the value to store, or raises what is wrong with it."""


def described(kind: type) -> str:
    """Return the type of a column with its limit, if the name does not say it."""
    if kind is not Decimal:
        return shown(kind)
    whole = DECIMAL_DIGITS - DECIMAL_PLACES
    return f"decimal of up to {whole} digits before the point and {DECIMAL_PLACES} after it"


def shown(kind: type) -> str:
    """Return the type of a column as names of tables and messages have it."""
    return kind.__name__.lower()
