"""What the installed pyspark has. Tests that need what it has not are skipped, and say why.

It goes by the version alone, not by what can be imported: else a sink that is broken would be one
that is missing.
"""

import pyspark
import pytest

VERSION = tuple(map(int, pyspark.__version__.split(".")[:2]))
HERE = f"here is pyspark {pyspark.__version__}"

needs_batch_sink = pytest.mark.skipif(
    VERSION < (4, 0), reason=f"register needs pyspark 4.0; {HERE}"
)
needs_stream_sink = pytest.mark.skipif(
    VERSION < (4, 1), reason=f"a stream into a registered format needs pyspark 4.1; {HERE}"
)
needs_connect_server = pytest.mark.skipif(
    VERSION < (4, 0),
    reason=f"the server of Spark Connect is a package of its own before pyspark 4.0; {HERE}",
)
