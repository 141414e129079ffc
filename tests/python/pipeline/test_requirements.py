"""Without pyarrow, or with an old one, pipelines say what to install."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ("sys.modules['pyarrow'] = None", "import of pyarrow halted"),
        (
            "import types; sys.modules['pyarrow'] = types.SimpleNamespace(__version__='19.0.1')",
            "here is pyarrow 19.0.1",
        ),
    ],
)
def test_pyarrow_that_is_missing_or_too_old_is_named(before: str, reason: str) -> None:
    program = f"import sys; {before}; import batchqueue.pipeline"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(
        "batchqueue.exceptions.MissingPackageError: batchqueue.pipeline needs pyarrow 20 or later"
    )
    assert reason in last
    assert last.endswith("pip install 'batchqueue-rs[files]'")
