"""Where pyspark is missing, one sentence says what to install."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("package", ["pyspark", "pyarrow"])
def test_missing_package_is_named_with_the_remedy(package: str) -> None:
    program = f"import sys; sys.modules['{package}'] = None; import batchqueue.spark"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "MissingPackageError: batchqueue.spark needs pyarrow and pyspark 4.1 or later" in answer.stderr
    assert package in answer.stderr
    assert "pip install 'batchqueue[spark]'" in answer.stderr
