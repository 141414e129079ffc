"""Articles and plurals of the words in messages."""


def a_type(value: object) -> str:
    """Return the name of a value's class with its article.

    >>> a_type(3), a_type("text")
    ('an int', 'a str')
    """
    return with_article(type(value).__name__)


def with_article(name: str) -> str:
    """Return a name behind `a` or `an`, by its first letter. A leading `u` is that of `uint8`.

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
        plural: The same in the plural. Default: with an `s`.
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
