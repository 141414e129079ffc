"""`CatalogHandle`, which opens a catalog of Iceberg tables in any process.

The Iceberg store and the Iceberg source share it; the source needs nothing else of the store.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


_OPENINGS = 3
"""Attempts to open an SQL catalog: another process may be first to create each of its tables."""


class CatalogHandle:
    """A description of a catalog, which pickles, and the open catalog in this process."""

    def __init__(self, catalog: str | Mapping[str, Any] | None) -> None:
        """Describe a catalog without opening it.

        Args:
            catalog: The name of the catalog in pyiceberg's configuration; or its properties,
                including its `name`; or `None` for the default catalog.
        """
        self._described = dict(catalog) if isinstance(catalog, Mapping) else catalog
        self._class: type | None = None
        self._open: Catalog | None = None
        self._opened_in = 0

    @classmethod
    def of(cls, catalog: "Catalog") -> Self:
        """Describe an open catalog. Other processes open it by its class and its properties."""
        handle = cls({**catalog.properties, "name": catalog.name})
        handle._class = type(catalog)
        handle._open = catalog
        handle._opened_in = os.getpid()
        return handle

    @property
    def is_in_memory(self) -> bool:
        """Whether the catalog is out of reach of other processes."""
        if not isinstance(self._described, dict):
            return False
        uri = str(self._described.get("uri"))
        return uri == "sqlite://" or ":memory:" in uri or "mode=memory" in uri

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None}

    def __repr__(self) -> str:
        name = self._described.get("name") if isinstance(self._described, dict) else self._described
        return repr(name or "default")

    def open(self) -> "Catalog":
        """Return the catalog, opened in this process; a connection does not survive a fork."""
        is_ours = self._opened_in == os.getpid() or self.is_in_memory
        if self._open is None or not is_ours:
            self._open = self._opened()
            self._opened_in = os.getpid()
        return self._open

    def _opened(self) -> "Catalog":
        for remaining in reversed(range(_OPENINGS)):
            try:
                return self._loaded()
            except Exception as error:
                if not remaining or "already exists" not in str(error):
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _loaded(self) -> "Catalog":
        from pyiceberg.catalog import load_catalog

        if not isinstance(self._described, dict):
            return load_catalog(self._described)
        if self._class is None:
            return load_catalog(**self._described)
        return self._class(**self._described)  # type: ignore[no-any-return]
