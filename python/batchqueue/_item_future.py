"""`ItemFuture`: the future of a submitted item, as `submit` returns it."""

from concurrent.futures import Future
from typing import Any

from batchqueue import _core


class ItemFuture(_core.FutureBase, Future):  # type: ignore[misc, override, type-arg]
    """A `concurrent.futures.Future` whose methods are those of the core."""

    __init__ = object.__init__  # the core has made all of it

    def __repr__(self) -> str:
        if not self.done() or self.cancelled():
            what = self._state.partition("_")[0].lower()
        else:
            error = self.exception()
            what = (
                f"finished returned {type(self.result()).__name__}"
                if error is None
                else f"finished raised {type(error).__name__}"
            )
        return f"<ItemFuture at {id(self):#x} state={what}>"

    def __reduce__(self) -> Any:
        raise TypeError("the future of a queued item cannot be pickled; send its result")
