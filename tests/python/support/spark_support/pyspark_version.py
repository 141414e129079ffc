"""What the installed pyspark has. Tests that need more are skipped with the reason.

It depends on the version alone, not on what can be imported: otherwise a broken sink would look
like a missing one.
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
needs_collations = pytest.mark.skipif(
    VERSION < (4, 0), reason=f"collations are since pyspark 4.0; {HERE}"
)
needs_connect_server = pytest.mark.skipif(
    VERSION < (4, 0),
    reason=f"the server of Spark Connect is a separate package before pyspark 4.0; {HERE}",
)
