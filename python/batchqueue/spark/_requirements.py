"""Says in one sentence what is missing where pyspark is; imported before everything that needs it."""

from batchqueue.exceptions import MissingPackageError

__all__ = ["MissingPackageError"]

_REMEDY = "pip install 'batchqueue[spark]'"

try:
    import pyarrow  # noqa: F401
    import pyspark

    if tuple(map(int, pyspark.__version__.split(".")[:2])) < (3, 5):
        raise ImportError(f"here is pyspark {pyspark.__version__}")
except ImportError as error:
    raise MissingPackageError(
        f"batchqueue.spark needs pyarrow and pyspark 3.5 or later ({error}): {_REMEDY}"
    ) from error


def require_data_sources() -> None:
    """Make sure that this pyspark has what the sink is built on; for streams it asks for more, see the sink.

    Raises:
        MissingPackageError: It is too old.
    """
    try:
        from pyspark.sql.datasource import DataSourceArrowWriter  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            f"register needs pyspark 4.0 or later for batches, and 4.1 for streams ({error}): {_REMEDY}, or use "
            "MetricsWriter, foreach_batch and for_each_partition, which need pyspark 3.5"
        ) from error
