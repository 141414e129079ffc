"""`DeadLetter`: an item that failed for good, as its handler gets it."""

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DeadLetter(Generic[T]):
    """An item that failed in its last attempt. A `dead_letter` handler gets a list of them.

    Attributes:
        item: The item; of Arrow data, a record batch of rows that failed together.
        error: What the handler raised in the last attempt; a `BatchFailed` if it named the item.
        attempts: The attempts that the item had, the first included.
        queue: The name of the queue.
        item_type: The class of the item, or the tag of the rows, empty if they have none. With a
            consumer, rows of several tags may come together; it is that of the first then.
    """

    item: T
    error: BaseException
    attempts: int
    queue: str
    item_type: type | str
