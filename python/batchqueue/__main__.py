"""`python -m batchqueue`: the same as the console script `batchqueue`."""

import sys

from batchqueue.cli import main

if __name__ == "__main__":
    sys.exit(main())
