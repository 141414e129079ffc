"""Checks for pyspark, pyarrow and numpy, and their versions, before anything imports them."""

from batchqueue.base.checks import install_command
from batchqueue.exceptions import BatchQueueError, MissingPackageError

__all__ = ["MissingPackageError", "require_data_sources"]


try:
    import numpy  # noqa: F401
    import pyarrow  # noqa: F401
    import pyspark

    if tuple(map(int, pyspark.__version__.split(".")[:2])) < (3, 5):
        raise ImportError(f"here is pyspark {pyspark.__version__}")
except ImportError as error:
    raise MissingPackageError(
        f"batchqueue.spark needs numpy, pyarrow and pyspark 3.5 or later ({error}): "
        f"{install_command('spark')}"
    ) from error


def require_data_sources() -> None:
    """Check that this pyspark has Python data sources, which `register` is built on.

    Streams need a later version than batches; `AggregationDataSource.streamWriter` checks for that.

    Raises:
        MissingPackageError: pyspark is older than 4.0.
    """
    try:
        from pyspark.sql.datasource import DataSourceArrowWriter  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            f"register needs pyspark 4.0 or later for batches, and 4.1 for streams ({error}): "
            f"{install_command('spark')}, or use MetricsWriter, foreach_batch and "
            "for_each_partition, which need pyspark 3.5"
        ) from error


# The errors of the Spark sink and of the adapters for handlers.


class SinkError(BatchQueueError):
    """An epoch cannot be committed. The store, or with shards that shard, has nothing of it."""


class DeliveryError(BatchQueueError):
    """An attempt did not deliver all of its rows. What it delivered stays with the handlers."""
