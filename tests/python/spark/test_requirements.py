"""A missing or old pyspark gives one sentence that says what to install."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("package", ["pyspark", "pyarrow", "numpy"])
def test_missing_package_is_named_with_the_remedy(package: str) -> None:
    program = f"import sys; sys.modules['{package}'] = None; import batchqueue.spark"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (
        "MissingPackageError: batchqueue.spark needs numpy, pyarrow and pyspark 3.5 or later"
        in answer.stderr
    )
    assert package in answer.stderr
    assert "pip install 'batchqueue-rs[spark]'" in answer.stderr


def test_old_pyspark_is_named_with_the_remedy() -> None:
    program = "import pyspark; pyspark.__version__ = '3.4.4'; import batchqueue.spark"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (
        "pyspark 3.5 or later (here is pyspark 3.4.4): pip install 'batchqueue-rs[spark]'"
        in answer.stderr
    )


WITHOUT_DATA_SOURCES = """
import sys
sys.modules["pyspark.sql.datasource"] = None  # as before pyspark 4
from batchqueue.spark import MissingPackageError, for_each_partition, foreach_batch, register
try:
    register(None, None)
except MissingPackageError as error:
    print(error)
"""


def test_only_register_needs_the_data_sources_of_a_later_pyspark() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", WITHOUT_DATA_SOURCES], capture_output=True, text=True
    )
    assert (
        "register needs pyspark 4.0 or later for batches, and 4.1 for streams" in answer.stdout
    ), answer.stderr
    assert "or use MetricsWriter, foreach_batch and for_each_partition" in answer.stdout
