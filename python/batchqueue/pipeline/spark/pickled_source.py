"""`PickledSource`: a source as Spark carries it to the processes that plan and read."""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from pyspark import cloudpickle

from batchqueue.base.words import with_article
from batchqueue.pipeline.contract import Source
from batchqueue.pipeline.errors import SourcePickleError

_DEEPEST = 4


@dataclass(frozen=True)
class PickledSource:
    """The bytes of a source, as it was before anything opened a handle in it.

    Spark pickles a reader after using it. If the reader held the source itself, whatever the
    planning has opened would have to pickle as well.

    Attributes:
        name: The name of the source in the graph.
        data: The source, pickled.
    """

    name: str
    data: bytes

    @classmethod
    def of(cls, source: Source, name: str) -> "PickledSource":
        """Pickle a source.

        Raises:
            SourcePickleError: It does not pickle; the message names the attribute at fault.
        """
        try:
            return cls(name, _dumps(source))
        # Pickling runs code of the object, which may raise anything.
        except Exception as error:
            path, value = _culprit(source, type(source).__name__)
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            raise SourcePickleError(
                f"source {name!r} has to be sent to Spark's processes and does not pickle: {path} "
                f"is {with_article(kind)} ({error}); open such "
                "handles in plan() and read(), and drop them in __getstate__()"
            ) from error

    def load(self) -> Source:
        """Return a source of one's own, without handles."""
        return cast(Source, pickle.loads(self.data))


def _dumps(value: Any) -> bytes:
    return cast(bytes, cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


def _culprit(value: Any, path: str, depth: int = 0) -> tuple[str, Any]:
    """Return the path of the innermost part that does not pickle, and that part."""
    if depth < _DEEPEST:
        for name, part in _parts(value):
            if not _pickles(part):
                return _culprit(part, f"{path}{name}", depth + 1)
    return path, value


def _pickles(value: Any) -> bool:
    try:
        _dumps(value)
    except Exception:
        return False
    return True


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{number}]", part) for number, part in enumerate(value))
    else:
        yield from ((f".{name}", part) for name, part in _attributes(value).items())


def _attributes(value: Any) -> dict[str, Any]:
    names: dict[str, Any] = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = getattr(kind, "__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, slot):
                names[slot] = getattr(value, slot)
    return names
