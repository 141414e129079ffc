"""Checks that pyarrow is here and new enough, before anything that imports it."""

from batchqueue.base.checks import install_command
from batchqueue.exceptions import MissingPackageError

__all__ = ["MissingPackageError"]

_LEAST = 20
"""The first version that reads JSON lines in a stream."""

try:
    import pyarrow

    if int(pyarrow.__version__.partition(".")[0]) < _LEAST:
        raise ImportError(f"here is pyarrow {pyarrow.__version__}")
except ImportError as error:
    raise MissingPackageError(
        f"batchqueue.pipeline needs pyarrow {_LEAST} or later ({error}): {install_command('files')}"
    ) from error
