"""The words in messages: articles and plurals, names of item types, times.

The lowest module of the package, below the exceptions: it imports no other.
"""


def a_type(value: object) -> str:
    """Return the name of a value's class with its article.

    >>> a_type(3), a_type("text")
    ('an int', 'a str')
    """
    return with_article(type(value).__name__)


def with_article(name: str) -> str:
    """Return a name after `a` or `an`, by its first letter. A leading `u` is read as in `uint8`.

    >>> with_article("RecordBatch"), with_article("_Order"), with_article("uint8")
    ('a RecordBatch', 'an _Order', 'a uint8')
    """
    article = "an" if name.lstrip("_")[:1].lower() in tuple("aeio") else "a"
    return f"{article} {name}"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun.

    >>> counted(1, "item"), counted(2_000, "item"), counted(0, "batch", "batches")
    ('1 item', '2,000 items', '0 batches')

    Args:
        number: How many there are.
        noun: What it counts, in the singular.
        plural: The noun in the plural. Default: with an `s`.
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


# Names of item types, as logs and metrics show them.


def type_name(item_type: type | str) -> str:
    """Return the qualified name of a class, with its module unless it is a built-in; or the tag."""
    if isinstance(item_type, str):
        return item_type
    module, name = item_type.__module__, item_type.__qualname__
    return name if module == "builtins" else f"{module}.{name}"


def unique_names(item_types: list[type | str]) -> list[str]:
    """Return the names of several types. Of equal names, the second gets ` #2`, and so on."""
    seen: dict[str, int] = {}
    names = []
    for item_type in item_types:
        name = type_name(item_type)
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return names


def has_own_equality(item_type: type | str) -> bool:
    """Return whether a metaclass defines equality, so that its class may not work as a dict key."""
    kind = type(item_type)
    return issubclass(kind, type) and (
        kind.__eq__ is not type.__eq__ or kind.__hash__ is not type.__hash__
    )


def duration(seconds: float) -> str:
    """Return a time with its unit, to three significant digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns" if seconds else "0 s"
