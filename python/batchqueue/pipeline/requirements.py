"""A check that pyarrow is installed and recent enough, before anything imports it."""

from batchqueue.base.checks import install_command
from batchqueue.exceptions import MissingPackageError

__all__ = ["MissingPackageError"]

_LEAST = 20
"""The first version that can stream JSON lines."""

try:
    import pyarrow

    if int(pyarrow.__version__.partition(".")[0]) < _LEAST:
        raise ImportError(f"here is pyarrow {pyarrow.__version__}")
except ImportError as error:
    raise MissingPackageError(
        f"batchqueue.pipeline needs pyarrow {_LEAST} or later ({error}): {install_command('files')}"
    ) from error
