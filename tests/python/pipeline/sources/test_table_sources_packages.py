"""Without its package, a source of tables says what to install, and nothing else is missed."""

import subprocess
import sys
from typing import Any

import pytest

from batchqueue.exceptions import MissingPackageError
from batchqueue.pipeline import IcebergSource, LanceSource, SparkFrameSource


@pytest.mark.parametrize(
    ("source", "argument", "package", "extra"),
    [
        (IcebergSource, "shop.orders", "pyiceberg", "iceberg"),
        (LanceSource, "orders.lance", "lance", "lance"),
        (SparkFrameSource, None, "pyspark", "spark"),
    ],
)
def test_missing_package_is_named_with_its_extra(
    source: Any, argument: Any, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=rf"pip install 'batchqueue-rs\[{extra}\]'"):
        source(argument)


def test_pipelines_are_imported_without_the_packages_of_tables():
    program = (
        "import sys; from batchqueue.pipeline import IcebergSource, LanceSource, SparkFrameSource;"
        "print(sorted({'lance', 'pyiceberg', 'pyspark'} & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "[]\n"
