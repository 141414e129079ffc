"""A process that runs a server until its standard input ends.

The demo holds the other end of that pipe. So the server ends with the demo in every case, also when
the demo is killed. This file is run as a script, and imports nothing of the package.
"""

import signal
import subprocess
import sys
import threading
from types import FrameType

_PATIENCE_S = 5.0


def main(command: list[str]) -> int:
    """Run a server, and return its exit code."""
    # Its own process group: Ctrl-C in a terminal is for the demo, which needs the server to end.
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)

    def end(number: int = 0, frame: FrameType | None = None) -> None:
        del number, frame
        server.terminate()

    signal.signal(signal.SIGTERM, end)

    def watch() -> None:
        sys.stdin.buffer.read()
        end()
        try:
            server.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            server.kill()

    threading.Thread(target=watch, name="keeper", daemon=True).start()
    return server.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
