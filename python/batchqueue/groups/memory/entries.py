"""`MemoryEntries`: records as they were read from memory."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from batchqueue.exceptions import BatchQueueError
from batchqueue.groups.entries import Decode
from batchqueue.groups.messages import Entry
from batchqueue.groups.offsets import SEQUENCE_BITS
from batchqueue.groups.record import Record


class MemoryEntries:
    """Records of one partition; see `entries.Entries`."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries

    @property
    def first(self) -> int:
        """The offset of the first one."""
        return self._entries[0].offset

    @property
    def last(self) -> int:
        """The offset of the last one."""
        return self._entries[-1].offset

    def records(
        self, decode: Decode, plain: int | None = None
    ) -> tuple[list[Record[Any]], BaseException | None]:
        """Decode them, up to the first one that cannot be decoded."""
        most = -1 if plain is None else plain
        records: list[Record[Any]] = []
        for offset, data, key, headers in self._entries:
            try:
                value = data if len(data) <= most else decode(data, offset)
            except BatchQueueError as error:
                return records, error
            records.append(Record(value, key, offset, offset >> SEQUENCE_BITS, headers))
        return records, None

    def entry(self, offset: int) -> Entry:
        """Return the entry with this offset."""
        return self._entries[bisect_left(self._entries, offset, key=lambda entry: entry.offset)]

    def __getitem__(self, places: slice) -> "MemoryEntries":
        """Return some of them."""
        return MemoryEntries(self._entries[places])

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._entries)
