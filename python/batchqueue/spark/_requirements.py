"""Says in one sentence what is missing where pyspark is; imported before everything that needs it."""

from batchqueue.exceptions import MissingPackageError

__all__ = ["MissingPackageError"]

try:
    import pyarrow  # noqa: F401
    from pyspark.sql.datasource import DataSourceStreamArrowWriter  # noqa: F401
except ImportError as error:
    raise MissingPackageError(
        f"batchqueue.spark needs pyarrow and pyspark 4.1 or later ({error}): pip install 'batchqueue[spark]'"
    ) from error
