"""The version of the package is that of its core."""

import tomllib
from pathlib import Path

import batchqueue

CARGO = Path(__file__).parents[2] / "Cargo.toml"


def test_version_is_that_of_the_crate():
    assert batchqueue.__version__ == tomllib.loads(CARGO.read_text())["package"]["version"]


def test_version_is_public():
    assert isinstance(batchqueue.__version__, str)
    assert "__version__" in batchqueue.__all__
    assert "__version__" in dir(batchqueue)
